"""Hosts in network namespaces, with links that are really as slow as they are said to be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.cgroups import LimitError
from testbed import HostError, Hosts, available, enter, inside
from testbed.hosts import FOLDER
from tests.testbed.makers import begin, line_of, needs_hosts, python

RECEIVE = """
import socket, sys, time
from testbed import enter
namespace, address = sys.argv[1:]
enter(namespace)
listener = socket.create_server((address, 7700))
print("ready")
while True:
    connection, _ = listener.accept()
    start, count = time.monotonic(), 0
    while block := connection.recv(1 << 20):
        count += len(block)
    print(time.monotonic() - start, count)
"""
SEND = """
import socket, sys
from testbed import enter
namespace, address, count = sys.argv[1:]
enter(namespace)
while input() == "":
    with socket.create_connection((address, 7700), timeout=100) as connection:
        connection.sendall(bytes(int(count)))
"""
LEAVE_BEHIND = """
import os
from testbed import Hosts
from testbed.hosts import FOLDER
hosts = Hosts(["orphan"]).__enter__()
print(*(FOLDER / name for name in (hosts.hub, hosts.namespace("orphan")) if (FOLDER / name).exists()), flush=True)
os._exit(1)
"""


def transfer_s(sender: subprocess.Popen[str], receiver: subprocess.Popen[str], count: int) -> float:
    """Return how long the receiver takes for what the sender sends."""
    begin(sender)
    seconds, received = line_of(receiver).split()
    assert int(received) == count
    return float(seconds)


def own_network() -> str:
    """Return what tells the network namespace of this thread from others."""
    return str(Path("/proc/thread-self/ns/net").readlink())


@needs_hosts
@pytest.mark.parametrize("rates", [[10e6, None], [None, 10e6]], ids=["sender", "receiver"])
def test_ten_megabytes_take_a_second_over_ten_megabytes_a_second(rates: list[float | None]) -> None:
    with (
        Hosts(["here", "there"], rates) as hosts,
        python(RECEIVE, hosts.namespace("there"), hosts.address("there")) as receiver,
        python(SEND, hosts.namespace("here"), hosts.address("there"), 10_000_000) as sender,
    ):
        assert line_of(receiver) == "ready"

        assert 0.7 < transfer_s(sender, receiver, 10_000_000) < 60


@needs_hosts
def test_a_rate_follows_a_change_in_mid_run() -> None:
    with (
        Hosts(["here", "there"], [2e6, None]) as hosts,
        python(RECEIVE, hosts.namespace("there"), hosts.address("there")) as receiver,
        python(SEND, hosts.namespace("here"), hosts.address("there"), 4_000_000) as sender,
    ):
        assert line_of(receiver) == "ready"
        slow = transfer_s(sender, receiver, 4_000_000)
        hosts.change_rate("here", 40e6)
        faster = transfer_s(sender, receiver, 4_000_000)
        hosts.change_rate("here", None)
        fastest = transfer_s(sender, receiver, 4_000_000)

        assert slow > 0.7
        assert faster < slow / 2
        assert fastest < slow / 2


@needs_hosts
def test_all_hosts_reach_the_hub() -> None:
    with (
        Hosts(["one", "two"]) as hosts,
        python(RECEIVE, hosts.hub, hosts.bridge_address) as receiver,
        python(SEND, hosts.namespace("one"), hosts.bridge_address, 1000) as one,
        python(SEND, hosts.namespace("two"), hosts.bridge_address, 1000) as two,
    ):
        assert line_of(receiver) == "ready"
        for sender in (one, two):
            transfer_s(sender, receiver, 1000)


@needs_hosts
def test_a_host_has_no_way_out() -> None:
    with Hosts(["one"]) as hosts:
        command = ["ip", "-n", hosts.namespace("one"), "route", "show", "default"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)

        assert done.stdout.strip() == ""


@needs_hosts
def test_a_thread_visits_a_host_and_comes_back() -> None:
    before = own_network()
    with Hosts(["one"]) as hosts:
        with inside(hosts.namespace("one")):
            assert own_network() != before

        assert own_network() == before


@needs_hosts
def test_namespaces_go_away_with_the_block_and_after_an_error() -> None:
    hosts = Hosts(["one", "two"])
    made = [hosts.hub, hosts.namespace("one"), hosts.namespace("two")]
    with hosts:
        assert all((FOLDER / name).exists() for name in made)
    assert not any((FOLDER / name).exists() for name in made)

    with pytest.raises(KeyError), hosts:
        raise KeyError

    assert not any((FOLDER / name).exists() for name in made)


@needs_hosts
def test_what_was_made_before_a_refused_rate_goes_away() -> None:
    hosts = Hosts(["one", "two"], [None, 1.0])
    with pytest.raises(HostError, match=r"rate of 1\.0 bytes per second"), hosts:
        pass

    assert not (FOLDER / hosts.hub).exists()


@needs_hosts
def test_what_a_dead_process_left_is_swept_at_the_next_start() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVE_BEHIND], capture_output=True, text=True, timeout=100, check=False
    )
    left = [Path(word) for word in done.stdout.split()]
    assert len(left) == 2  # by now another test may have swept them

    with Hosts(["next"]):
        assert not any(path.exists() for path in left)


def test_hosts_need_names_that_differ_and_a_rate_each() -> None:
    with pytest.raises(HostError, match="one, one"):
        Hosts(["one", "one"])
    with pytest.raises(HostError, match="1 rates for 2 hosts"):
        Hosts(["one", "two"], [1e6])
    with pytest.raises(LimitError, match="is no name"):
        Hosts(["../one"])
    with pytest.raises(HostError, match="no host `three`") as raised:
        Hosts(["one", "two"]).address("three")

    assert raised.value.hint == "known are: one, two"


def test_a_namespace_that_is_not_there_cannot_be_entered() -> None:
    with pytest.raises(HostError, match="cannot be opened"):
        enter("dovetail-never-made")


def test_every_part_works_or_has_a_reason() -> None:
    found = available()

    for part in ("cpu_quota", "memory_limit", "hosts"):
        assert getattr(found, part) == (part not in found.why_not)


def test_without_root_the_reasons_say_what_to_do() -> None:
    if os.geteuid():
        pytest.skip("root becomes nobody here")
    code = "import os; from testbed import available; os.setuid(65534); print(available().why_not)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)

    assert done.stdout.count("run as root") == 3
