"""A stranger with more connections than the process may have open files takes nothing from it."""

from __future__ import annotations

import multiprocessing
import resource
import time
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dovetail.transport import Envelope, KeyRing, Listener
from dovetail.transport.authenticator import MOST_UNPROVEN, most_unproven
from dovetail.transport.rate_limited_log import QUIET_S
from tests.transport.crowd import NEEDED_FILES, crowd_at
from tests.transport.makers import Ask, Site, Told, answer_to, make_codec, serving, wait_for

pytestmark = [
    pytest.mark.skipif(
        0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < NEEDED_FILES, reason="a crowd needs more open files"
    ),
]


def serve_with_few_files(folder: Path, line: Connection) -> None:
    """Answer letters in a process that may open 1024 files; each answer needs some of them."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    listener = Listener(
        ["tcp://127.0.0.1:*"], codec=make_codec(), keys=KeyRing(folder / "keys"), name="server", log=lambda text: None
    )

    def answer(envelope: Envelope) -> tuple[Told, tuple[()]]:
        files = [(folder / f"file-{number}").open("wb") for number in range(64)]
        for file in files:
            file.close()
        return Told(envelope.message.text), ()

    with serving(listener, answer):
        line.send(listener.addresses[0])
        line.recv()
        line.send(listener.refusals["crowd"])


@pytest.mark.processes
def test_its_own_are_served_and_files_can_be_opened_under_a_crowd(site: Site):
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    server = spawn.Process(target=serve_with_few_files, args=(site.folder, there))
    server.start()
    address = here.recv()
    with closing(site.caller(address)) as old:
        assert answer_to(old, Ask("before")).message == Told("before")
        with crowd_at([address]):
            for number in range(30):
                with closing(site.caller(address, identity=b"worker/%d" % number)) as new:
                    for caller in (old, new):
                        assert answer_to(caller, Ask("x")).message == Told("x")
    here.send("stop")
    num_shown_out = here.recv()
    server.join()
    server.close()

    assert num_shown_out > 0  # of 1500 at most 128 stay; how many were let in by now depends on the machine


def test_those_who_have_proven_their_keys_are_never_shown_out(site: Site, monkeypatch):
    monkeypatch.setattr("dovetail.transport.authenticator.MOST_UNPROVEN", 4)
    begun_s = time.monotonic()
    with serving(site.listener("tcp://127.0.0.1:*", site.ipc)) as listener, ExitStack() as open_lines:
        callers = []
        for n in range(24):  # one after the other: together they would be a crowd themselves
            caller = open_lines.enter_context(
                closing(site.caller(listener.addresses[n % 2], identity=b"worker/%d" % n))
            )
            callers.append(caller)
            assert answer_to(caller, Ask("x")).message == Told("x")
        for caller in callers:
            assert answer_to(caller, Ask("x")).message == Told("x")
        with crowd_at(listener.addresses[:1], 40):
            assert wait_for(lambda: listener.refusals["crowd"] >= 30)
            for caller in callers:
                assert answer_to(caller, Ask("x")).message == Told("x")
    told = sum("have proven no key" in line for line in site.log)
    assert told <= 2 + (time.monotonic() - begun_s) / QUIET_S


def test_a_part_of_the_files_is_for_strangers(monkeypatch):
    for soft, expected in ((64, 16), (1024, 128), (1 << 20, MOST_UNPROVEN), (resource.RLIM_INFINITY, MOST_UNPROVEN)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert most_unproven() == expected
