"""Thousands of letters that no process would send, to a coordinator and a server: both go on as if nothing had been."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import zmq

from dovetail.runtime.blueprint import ServerSpec
from dovetail.runtime.coordinator.loop import CoordinatorLoop
from dovetail.runtime.folder import KEYS
from dovetail.runtime.messages import Died, Failed, Hello, Pull, Pulled, Report, SaveNow, Status
from dovetail.runtime.process import Process
from dovetail.runtime.server.loop import ServerLoop
from dovetail.transport import Envelope, KeyRing
from tests.runtime.letters import CODEC, KINDS, random_letter
from tests.runtime.worker.makers import Bench

SLOW = pytest.mark.slow
MINE = 10**6
"""The number of requests that are not made up."""
HARMLESS = tuple(kind for kind in KINDS if kind not in (Failed, SaveNow, Died))
"""Messages after which a run may not end; a process that says that it failed, or that another did, is believed."""


class Scene:
    """A coordinator and a server of a run in threads, and lines to them with anybody's key."""

    def __init__(self, folder: Path, things: ExitStack, **how: Any) -> None:
        self.bench = Bench(folder, workers=2, **how)
        things.callback(self.bench.close)
        self.problems: list[BaseException] = []
        self.coordinator = CoordinatorLoop(Process(folder, "coordinator"))
        self.server = ServerLoop(Process(folder, "server-0"), 0)
        threads = [threading.Thread(target=self._guarded, args=(loop.run,)) for loop in (self.coordinator, self.server)]
        for thread in threads:
            thread.start()
            things.callback(thread.join, 60)
        things.callback(self._stop)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:
            self.problems.append(problem)

    def _stop(self) -> None:
        self.server._stopped = True
        self.coordinator._watchers.clear()
        self.coordinator._ended_s = -1e9

    @contextmanager
    def line(self, name: str, spec: ServerSpec) -> Iterator[zmq.Socket[bytes]]:
        """A line with the key of a process, that sends what it likes."""
        keys = KeyRing(self.bench.folder / KEYS)
        with zmq.Context() as context, context.socket(zmq.DEALER) as client:
            client.linger = 0
            client.sndhwm = client.rcvhwm = 0
            client.setsockopt(zmq.IDENTITY, f"{name}/{id(client)}".encode())
            client.curve_publickey, client.curve_secretkey = keys.own(name)
            client.curve_serverkey = keys.public(spec.name)
            client.connect(spec.local_address)
            yield client

    def ask(self, client: zmq.Socket[bytes], message: Any, arrays: Any = ()) -> Envelope:
        """Return the answer to a good request; what else came is thrown away."""
        client.send_multipart(CODEC.pack(MINE, message, arrays))
        deadline_s = time.monotonic() + 60
        while client.poll(max(0, int(1000 * (deadline_s - time.monotonic())))):
            envelope = CODEC.unpack([frame.buffer for frame in client.recv_multipart(copy=False)])
            if envelope.request == MINE:
                return envelope
        raise AssertionError(f"no answer to {message}; ended by {self.problems}")


@contextmanager
def scene(folder: Path, **how: Any) -> Iterator[Scene]:
    with ExitStack() as things:
        made = Scene(folder, things, **how)
        yield made
    assert made.problems == []


def flood(
    scene: Scene, client: zmq.Socket[bytes], name: str, seed: int, num_letters: int, look: Callable[[], None]
) -> None:
    """Send letters; look now and then whether all is well."""
    random = Random(seed)
    for number in range(1, num_letters + 1):
        client.send_multipart(random_letter(random, name, HARMLESS))
        if number % 250 == 0:
            look()
            assert scene.problems == []


HOWS = ({"mode": "sync"}, {"mode": "async"}, {"dense": "ring"})
NAMES = ("worker-0", "server-0", "launcher")


@pytest.mark.parametrize(
    ("how", "name"),
    [  # every way of a run and every name once; the other pairs are slow
        pytest.param(how, name, id=f"{how}-{name}", marks=[] if HOWS.index(how) == NAMES.index(name) else SLOW)
        for how in HOWS
        for name in NAMES
    ],
)
def test_a_coordinator_goes_on_whatever_it_is_told(tmp_path, name, how):
    with scene(tmp_path / "run", **how) as made:
        spec = made.bench.blueprint.coordinator
        with made.line(name, spec) as client, made.line("launcher", spec) as watcher:
            if name == "worker-0":
                client.send_multipart(CODEC.pack(0, Hello(role="worker", name=name, process_id=1)))

            def look() -> None:
                while client.poll(0):
                    client.recv_multipart()
                report = made.ask(watcher, Status()).message
                assert isinstance(report, Report)
                assert report.state not in ("failed", "done"), report.error
                assert report.samples == 0

            flood(made, client, name, 1, 2000, look)


@pytest.mark.parametrize("num_letters", [3_000, pytest.param(30_000, marks=SLOW)])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_server_goes_on_and_its_rows_stay_whatever_it_is_asked(tmp_path, mode, num_letters):
    keys = np.arange(10, dtype=np.int64)
    with scene(tmp_path / "run", mode=mode) as made, made.line("worker-0", made.bench.blueprint.servers[0]) as client:
        deadline_s = time.monotonic() + 60
        pull = Pull(generation=1, version=0, tables=(0,), dense=False)
        while not isinstance((before := made.ask(client, pull, [keys])).message, Pulled):
            assert time.monotonic() < deadline_s

        def look() -> None:
            envelope = made.ask(client, pull, [keys])
            assert isinstance(envelope.message, Pulled), envelope.message
            if mode == "sync":  # nothing is committed; in async whatever makes sense is applied
                np.testing.assert_array_equal(envelope.arrays[0], before.arrays[0])

        flood(made, client, "worker-0", 2, num_letters, look)
        assert made.server._shard.tables[0].keys().max() < made.bench.blueprint.tables[0].num_rows
