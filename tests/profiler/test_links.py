"""Links: the line that is fitted, loopback, strangers at the door, and two hosts joined by a wire of known speed."""

import contextlib
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.profiler.links import (
    HEADER,
    MAGIC,
    MOST_BYTES,
    VERSION,
    LinkError,
    LinkSpeed,
    fit_line,
    measure_device_copies,
    measure_link,
    measure_loopback,
    serve_link,
)

DOVETAIL = Path(sys.executable).parent / "dovetail"


@contextlib.contextmanager
def serving(*options: str, prefix: tuple[str, ...] = ()) -> Iterator[tuple[subprocess.Popen, int]]:
    """Run `dovetail link serve` as a user would, and yield it with its port; end it by its id."""
    command = [*prefix, str(DOVETAIL), "link", "serve", "--port", "0", "--for", "200s", *options]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        first = server.stderr.readline()
        assert first.startswith("listening on "), first + server.stderr.read()
        yield server, int(first.rpartition(":")[2])
    finally:
        server.kill()
        server.wait(timeout=60)
        server.stderr.close()


@contextlib.contextmanager
def serving_thread(**options: float) -> Iterator[tuple[list[str], int]]:
    """Serve from a thread, and yield the list of what it tells, and its port; it must end by itself."""
    told: list[str] = []
    listening = threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        listening.set()

    server = threading.Thread(
        target=serve_link, args=("127.0.0.1", 0), kwargs={"for_s": 200.0, "tell": tell, **options}, daemon=True
    )
    server.start()
    assert listening.wait(timeout=60)
    yield told, int(told[0].rpartition(":")[2])
    server.join(timeout=60)
    assert not server.is_alive()


def header(*, magic: bytes = MAGIC, version: int = VERSION, kind: int = 1, size: int = 0) -> bytes:
    return HEADER.pack(magic, version, kind, size)


def test_a_line_through_exact_points_has_their_latency_and_bandwidth():
    # 2 ms + n / 50 MB/s
    latency_s, bytes_per_s = fit_line([1e6, 2e6, 4e6], [0.022, 0.042, 0.082])

    assert latency_s == pytest.approx(0.002)
    assert bytes_per_s == pytest.approx(50e6)


def test_a_line_that_noise_tilts_the_wrong_way_still_has_a_bandwidth():
    # Through the origin: sum of x t over sum of x x = (1e6 * 0.03 + 2e6 * 0.02) / 5e12.
    latency_s, bytes_per_s = fit_line([1e6, 2e6], [0.03, 0.02])

    assert latency_s == 0
    assert bytes_per_s == pytest.approx(5e12 / 7e4)


def test_a_payload_takes_the_latency_and_its_bytes_over_the_bandwidth():
    speed = LinkSpeed(bytes_per_s=1e6, latency_s=0.5, spread=0.0)

    assert speed.seconds(2e6) == pytest.approx(2.5)
    assert speed.link(source="a", target="b").bytes_per_s == 1e6


def test_loopback_is_fast_in_both_directions():
    speeds = measure_loopback(num_repeats=3)

    for speed in (speeds.there, speeds.back):
        assert 1e5 < speed.bytes_per_s < 1e12
        assert 0 < speed.latency_s < 5.0
        assert speed.spread >= 0


def test_a_server_asked_for_one_visit_ends_after_it_and_both_ends_tell_of_it():
    with serving("--host", "127.0.0.1", "--once") as (server, port):
        command = [str(DOVETAIL), "link", "measure", f"127.0.0.1:{port}", "--repeats", "1", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        measured = json.loads(done.stdout.splitlines()[-1])

        assert done.returncode == 0
        assert measured["port"] == port
        assert measured["there"].keys() == {"bytes_per_s", "latency_s", "spread"}
        assert measured["back"]["bytes_per_s"] > 1e5
        assert server.wait(timeout=60) == 0
        assert "measured by 127.0.0.1" in server.stderr.read()


GARBAGE = [
    (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "it sent b'GET /"),
    (random.Random(7).randbytes(100_000), "it sent"),
    (header(version=VERSION + 1), f"it speaks version {VERSION + 1}"),
    (header(size=1 << 63), "more than"),
    (header() + header(kind=2, size=MOST_BYTES + 1), "more than"),
    (header() + header(kind=77), "it asked for kind 77"),
    (header() + header(), "it asked for kind 1"),
    (header() + header(kind=2, size=1000) + b"half", "closed the connection"),
    (b"DV", "closed the connection"),
    (b"", "closed the connection"),
]


def test_a_server_outlives_garbage_says_what_came_and_measures_afterwards():
    with serving_thread(num_visits=1) as (told, port):
        for garbage, _ in GARBAGE:
            with (
                socket.create_connection(("127.0.0.1", port), timeout=60) as stranger,
                contextlib.suppress(OSError),  # it may be turned away before it is done
            ):
                stranger.sendall(garbage)
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(4096):
                    pass
        speeds = measure_link("127.0.0.1", port, num_repeats=1)

    assert speeds.there.bytes_per_s > 0
    for (_, complaint), line in zip(GARBAGE, told[1:], strict=False):
        assert complaint in line
    assert told[-1].startswith("measured by")


def test_a_silent_visitor_is_given_up_and_the_next_one_served():
    with (
        serving_thread(num_visits=1, timeout_s=3.0) as (told, port),
        socket.create_connection(("127.0.0.1", port), timeout=60),
    ):
        speeds = measure_link("127.0.0.1", port, num_repeats=1)

    assert speeds.there.bytes_per_s > 0
    assert "it stopped answering" in told[1]


def test_a_server_stops_when_its_time_is_up():
    assert serve_link("127.0.0.1", 0, for_s=0.05) == 0


def test_a_port_where_nobody_listens_is_an_error_that_says_what_to_run():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody else gets it, and nobody listens
        port = taken.getsockname()[1]
        with pytest.raises(LinkError, match=f"nobody answers at 127.0.0.1:{port}: Connection refused") as caught:
            measure_link("127.0.0.1", port, timeout_s=60)
    assert caught.value.hint.startswith(f"run `dovetail link serve --port {port}` there")


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not answer as `dovetail link serve` does: it sent b'HTTP"),
        (header(version=9), "it speaks version 9 of the protocol, not 1"),
        (header() + header(kind=5), "it sent a frame of kind 5 where 3 belongs"),
        (struct.pack("!I", 0), "stopped answering"),
    ],
)
def test_somebody_else_who_answers_is_named_for_what_he_says(answer: bytes, complaint: str):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def answer_once() -> None:
            visitor, _ = listener.accept()
            with visitor:
                visitor.settimeout(60)
                visitor.sendall(answer)
                with contextlib.suppress(OSError):
                    while visitor.recv(4096):
                        pass

        other = threading.Thread(target=answer_once, daemon=True)
        other.start()
        patience_s = 0.5 if complaint == "stopped answering" else 60.0
        with pytest.raises(LinkError, match=r"does not answer|stopped answering") as caught:
            measure_link("127.0.0.1", listener.getsockname()[1], timeout_s=patience_s)
        other.join(timeout=60)

    assert complaint in caught.value.message


def test_a_port_that_is_taken_is_an_error_with_a_hint():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(LinkError, match="Address already in use") as caught,
    ):
        serve_link("127.0.0.1", taken.getsockname()[1], for_s=1)

    assert "free port" in caught.value.hint


@pytest.mark.parametrize("place", ["nowhere:port", ":7711", "fd00::7:7711", ""])
def test_a_place_that_is_no_place_is_a_mistake_of_the_user(place: str):
    done = CliRunner().invoke(app, ["link", "measure", "--json", "--", place])

    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"] == f"`{place}` is not HOST:PORT"
    assert "hint: write it like" in done.stderr


def test_copies_to_a_device_are_faster_than_a_slow_network_or_there_is_none():
    import torch

    if not torch.cuda.is_available():
        with pytest.raises(LinkError, match="there is no CUDA device"):
            measure_device_copies()
        return
    speeds = measure_device_copies(num_repeats=3)
    for speed in (speeds.there, speeds.back):
        assert 1e9 < speed.bytes_per_s < 1e12  # PCIe 3.0 x4 at the least
        assert 0 < speed.latency_s < 0.01


can_make_hosts = os.name == "posix" and os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc")


@contextlib.contextmanager
def two_hosts(*, megabit_there: int, megabit_back: int) -> Iterator[tuple[str, str]]:
    """Make two network namespaces joined by a wire that is held to two rates; they are removed by name."""
    here, there = f"dvlink-{os.getpid()}-a", f"dvlink-{os.getpid()}-b"
    steps = [
        f"ip netns add {here}",
        f"ip netns add {there}",
        f"ip -n {here} link add wire type veth peer name wire netns {there}",
    ]
    for namespace, address, megabit in ((here, "10.213.7.1", megabit_there), (there, "10.213.7.2", megabit_back)):
        steps += [
            f"ip -n {namespace} address add {address}/24 dev wire",
            f"ip -n {namespace} link set wire up",
            f"tc -n {namespace} qdisc add dev wire root tbf rate {megabit}mbit burst 256kb latency 100ms",
        ]
    try:
        for step in steps:
            done = subprocess.run(step.split(), capture_output=True, text=True, timeout=60, check=False)
            if done.returncode:
                pytest.skip(f"`{step}`: {done.stderr.strip()}")
        yield here, there
    finally:
        for namespace in (here, there):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, timeout=60, check=False)


@pytest.mark.alone
@pytest.mark.skipif(not can_make_hosts, reason="needs root, ip and tc")
def test_between_two_hosts_the_measured_rates_are_those_of_the_wire():
    with (
        two_hosts(megabit_there=160, megabit_back=80) as (here, there),
        serving("--once", prefix=("ip", "netns", "exec", there)) as (server, port),
    ):
        command = ["ip", "netns", "exec", here, str(DOVETAIL), "link", "measure", f"10.213.7.2:{port}"]
        command += ["--repeats", "2", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

        assert done.returncode == 0, done.stderr
        measured = json.loads(done.stdout.splitlines()[-1])
        assert 0.6 * 20e6 < measured["there"]["bytes_per_s"] < 1.6 * 20e6
        assert 0.6 * 10e6 < measured["back"]["bytes_per_s"] < 1.6 * 10e6
        assert 0 < measured["back"]["latency_s"] < 0.05
        assert server.wait(timeout=60) == 0


@pytest.mark.skipif(not can_make_hosts, reason="needs root, ip and tc")
def test_a_host_that_swallows_every_packet_is_an_error_in_time():
    with two_hosts(megabit_there=100, megabit_back=100) as (here, there):
        subprocess.run(["ip", "-n", there, "link", "set", "wire", "down"], timeout=60, check=True)
        subprocess.run(
            f"ip -n {here} neighbour add 10.213.7.9 lladdr 02:00:00:00:00:09 dev wire".split(),
            timeout=60,
            check=True,
        )
        command = [
            "ip",
            "netns",
            "exec",
            here,
            str(DOVETAIL),
            "link",
            "measure",
            "10.213.7.9:7711",
            "--timeout",
            "0.5s",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 1
    assert "error: nobody answers at 10.213.7.9:7711" in done.stderr
    assert "Traceback" not in done.stderr
