"""Nothing of a ring's processes listens where others than the run's own could reach it."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import RunNetwork, RunWorker
from testbed import Hosts, available
from testbed.hosts import inside
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import kill, make_run
from tests.runtime.sandboxes import OtherHosts

LISTEN = "0A"
"""How `/proc/net/tcp` writes the state of a socket that listens."""


def ring_run(folder, **how):
    model = slow_counting(0.002, until=folder / "over")
    run = make_run(model=model, optimizer=PLAIN, reduction="sum", samples=20_000, **how)
    return msgspec.structs.replace(run, training=msgspec.structs.replace(run.training, dense="ring"))


def listening(local) -> set[tuple[str, int]]:
    """Return where the processes of a run listen, as the kernel says, each in its own network namespace."""
    found = set()
    for child in list(local.children.values()):
        place = Path(f"/proc/{child.process_id}")
        with suppress(OSError):  # it has just ended
            own = {link for path in (place / "fd").iterdir() if (link := target(path)).startswith("socket:")}
            for file in ("tcp", "tcp6"):
                for line in (place / "net" / file).read_text().splitlines()[1:]:
                    words = line.split()
                    if words[3] == LISTEN and f"socket:[{words[9]}]" in own:
                        found.add(address_in(words[1]))
    return found


def target(path: Path) -> str:
    """Return what a link points to, nothing where it has just gone."""
    with suppress(OSError):
        return str(path.readlink())
    return ""


def address_in(word: str) -> tuple[str, int]:
    """Return an address as the kernel writes it: words of four bytes, in this machine's order."""
    host, port = word.split(":")
    packed = b"".join(struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed), int(port, 16)


def watch(run, folder, *, sandbox=None, look=lambda local: None) -> set[tuple[str, int]]:
    """Train to the end, with one worker killed on the way; return everywhere anybody ever listened."""
    seen: set[tuple[str, int]] = set()
    killed = []
    prepare(run, folder)
    with LocalRun(folder, sandbox=sandbox) as local:

        def on_report(report) -> None:
            seen.update(listening(local))
            if report.step >= 3 and not killed:
                killed.append(look(local))
                kill(local, run.workers[0].name + ("-0" if run.workers[0].count > 1 else ""))
                (folder.parent / "over").touch()

        seen.update(listening(local))
        local.wait(on_report, timeout_s=200)
    assert killed
    assert_each_sample_counts_once(folder)
    return seen


def test_a_ring_on_one_host_listens_on_loopback_alone(tmp_path):
    seen = watch(ring_run(tmp_path), tmp_path / "run")

    assert len(seen) >= 2 + 2  # coordinator, server, and Gloo's own of each worker
    assert {ip for ip, _ in seen} == {"127.0.0.1"}


@pytest.mark.skipif(not available().hosts, reason="no network namespaces here")
def test_nothing_of_a_run_can_be_reached_from_another_host(tmp_path):
    tried, reached = [], []

    def look(local) -> None:
        ports = {port for _, port in listening(local)}
        with inside(hosts.namespace("near")):
            for port in sorted(ports):
                tried.append(port)
                with suppress(OSError), socket.create_connection((hosts.bridge_address, port), timeout=0.5):
                    reached.append(port)

    with Hosts(["near"]) as hosts, inside(hosts.hub):
        bed = OtherHosts({f"worker-{number}": hosts.hub for number in range(2)})
        run = msgspec.structs.replace(ring_run(tmp_path), network=RunNetwork(trusted_network=True))
        watch(run, tmp_path / "run", sandbox=bed, look=look)

    assert len(tried) >= 4
    assert reached == []


@pytest.mark.skipif(not available().hosts, reason="no network namespaces here")
def test_a_ring_across_hosts_listens_on_the_runs_addresses_alone(tmp_path):
    with Hosts(["near", "far"]) as hosts:
        run = ring_run(tmp_path, workers=[RunWorker(name="near"), RunWorker(name="far")])
        run = msgspec.structs.replace(run, network=RunNetwork(address=hosts.bridge_address, trusted_network=True))
        bed = OtherHosts({name: hosts.namespace(name) for name in ("near", "far")})
        with inside(hosts.hub):
            seen = watch(run, tmp_path / "run", sandbox=bed)

    assert {ip for ip, _ in seen} == {hosts.bridge_address, hosts.address("near"), hosts.address("far")}
