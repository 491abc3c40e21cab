"""Nodes of a Ray cluster as hosts: types and units from their resources, and the line to the keeper on each.

The process that speaks to Ray is started here, asked, started again where it ended, and ended.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import queue
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO

import msgspec

from dovetail.runtime.launch.hosts.protocol import (
    CloseKeeper,
    FramedSocket,
    HostFacts,
    HostProblem,
    KeeperAnswer,
    KeeperRequest,
    ProcessStates,
    RequestRefused,
    StartProcess,
    Unreachable,
    decode_answer,
    encode,
)
from dovetail.runtime.launch.hosts.ray.messages import (
    Ask,
    Connected,
    Forget,
    FromDriver,
    Hold,
    LetGo,
    Node,
    Open,
    Reply,
    ToDriver,
    decode_from_driver,
)
from dovetail.runtime.prepare.placement import units_taken
from dovetail.spec.hosts import HOST_NAME, Host
from dovetail.spec.run import RunWorker

CONNECT_S = 60.0
"""How long it may take to become a part of the cluster."""
PROBE_S = 5.0
"""How long the head may take to accept a connection."""
END_S = 10.0
LOOK_S = 0.2
NOT_LET_IN = b"InvalidAuthToken"
"""What Ray writes, over and over, to whoever has another token."""


class RayCluster:
    """A Ray cluster, and our process in it."""

    def __init__(self, address: str, *, lost_s: float) -> None:
        """Keep the address: `auto` for the cluster of this machine, or HEAD:PORT; nobody is called yet."""
        self.address, self._lost_s = address, lost_s
        self._process: subprocess.Popen[bytes] | None = None
        self._line: FramedSocket | None = None
        self._log: IO[bytes] | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, queue.Queue[Reply | None]] = {}
        self._lock = threading.Lock()
        self._users = 0

    def connect(self) -> Connected:
        """Start the process and have it become a part of the cluster; raise what is wrong."""
        if importlib.util.find_spec("ray") is None:
            raise HostProblem("Ray is not installed here", hint="pip install 'dovetail[ray]'")
        if self.address != "auto":
            _probe(self.address)
        self._forget_log()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open as long as the process runs
        here, theirs = socket.socketpair()
        ours = FramedSocket(here)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
                [sys.executable, "-m", f"{__package__}.driver", str(theirs.fileno()), self.address, str(self._lost_s)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        first = self._first_word(ours)
        if isinstance(first, Connected):
            self._line = ours
            threading.Thread(target=self._read, args=(ours,), name="dovetail-ray", daemon=True).start()
            return first
        ours.close()
        self._end_process()
        self._forget_log()
        which = "this machine" if self.address == "auto" else self.address
        raise HostProblem(f"the Ray cluster of {which}: {first.error}", hint=first.hint)

    def call(self, make: Callable[[int], ToDriver], timeout_s: float) -> bytes:
        """Return the answer to a message, which is made with a number; raise where there is none."""
        number, answers = next(self._numbers), queue.Queue[Reply | None](maxsize=1)
        self._waiting[number] = answers
        try:
            self.tell(make(number))
            reply = answers.get(timeout=timeout_s)
        except queue.Empty:
            raise Unreachable(f"no answer in {timeout_s:.0f} s") from None
        finally:
            self._waiting.pop(number, None)
        if reply is None:
            raise Unreachable(f"the process that speaks to Ray ended: {self._last_word()}")
        if reply.problem:
            raise HostProblem(reply.problem, hint=reply.hint)
        if reply.lost:
            raise Unreachable(reply.lost)
        return reply.answer

    def tell(self, message: ToDriver) -> None:
        """Send a message."""
        try:
            with self._lock:
                if self._line is None:
                    raise Unreachable(f"the process that speaks to Ray ended: {self._last_word()}")
                self._line.send(encode(message))
        except OSError as error:
            raise Unreachable(str(error)) from None

    def connect_again(self) -> None:
        """Start another process where the one that we had has ended: its keepers have, too."""
        with self._lock:
            if self._line is None:
                try:
                    self.connect()
                except HostProblem as problem:
                    raise Unreachable(str(problem)) from None

    def use(self) -> None:
        """Have one more line in use."""
        self._users += 1

    def leave(self) -> None:
        """Have one line less in use; with the last the process ends, and with it what we have in the cluster."""
        self._users -= 1
        if self._users <= 0:
            self.close()

    def close(self) -> None:
        """Leave the cluster."""
        with self._lock:
            line, self._line = self._line, None
            if line is not None:
                with suppress(OSError):
                    line.hang_up()
            if self._process is not None:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_S)
            self._end_process()
            self._forget_log()

    def _first_word(self, line: FramedSocket) -> Connected | RequestRefused:
        """Wait for word from the process; where the cluster does not let it in, that is seen in its log."""
        until_s = time.monotonic() + CONNECT_S
        with suppress(EOFError, OSError):
            while time.monotonic() < until_s:
                if line.poll(LOOK_S):
                    word: FromDriver = decode_from_driver(line.receive())
                    if not isinstance(word, Reply):
                        return word
                if NOT_LET_IN in self._said():
                    return RequestRefused(
                        "it does not let us in: the token is missing or another one",
                        hint="set RAY_AUTH_MODE=token, and give the cluster's token: RAY_AUTH_TOKEN_PATH, or "
                        "~/.ray/auth_token",
                    )
            return RequestRefused(f"it did not answer in {CONNECT_S:.0f} s", hint="see `ray status` on its head")
        return RequestRefused(f"the process that speaks to Ray ended: {self._last_word()}", hint="see `ray status`")

    def _read(self, line: FramedSocket) -> None:
        """Hand replies to those who wait for them, until the process is gone."""
        with suppress(EOFError, OSError, ValueError):
            while True:
                word = decode_from_driver(line.receive())
                if isinstance(word, Reply) and word.number in self._waiting:
                    self._waiting[word.number].put(word)
        with self._lock:
            if self._line is line:
                self._line = None
                self._end_process()
        line.close()
        for answers in list(self._waiting.values()):
            with suppress(queue.Full):
                answers.put_nowait(None)

    def _end_process(self) -> None:
        """End the process where it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _said(self) -> bytes:
        """Return what the process wrote."""
        return b"" if self._log is None else os.pread(self._log.fileno(), 1 << 20, 0)

    def _forget_log(self) -> None:
        """Close what the process wrote to."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _last_word(self) -> str:
        """Return the last thing that it wrote."""
        return next(reversed(self._said().decode(errors="replace").strip().splitlines()), "without a word")


def _probe(address: str) -> None:
    """Refuse an address that is none, or where nobody listens."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise HostProblem(f"`{address}` is no address of a Ray cluster", hint="write HEAD:PORT, such as 10.0.0.7:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except (OSError, OverflowError) as error:
        raise HostProblem(
            f"there is no Ray cluster at {address}: {error}",
            hint="start one there: ray start --head --port 6379; or see the address that `ray status` tells",
        ) from None


LOST_S = 10.0
OPEN_S = 75.0
HOLD_S = 5.0
"""How long Ray may take to reserve what was free a moment ago."""
SPARE_S = 2.0
"""What passing a request on may take beside the answer."""
OWN = ("CPU", "GPU", "memory", "object_store_memory")
"""Resources that every node has by itself; others are types, but for those with these beginnings."""
NO_TYPES = ("node:", "accelerator_type:", "bundle")


class RayConnection:
    """The line to the keeper on a node, for the units of one type."""

    def __init__(self, cluster: RayCluster, host: Host, here: str, resources: Mapping[str, float]) -> None:
        """Keep what one unit is to Ray."""
        self.cluster, self.host, self.here = cluster, host, here
        self._unit = dict(resources)
        self._keeper = ""
        self._holders: set[str] = set()
        """Workers whose units are reserved."""
        cluster.use()

    def open(self) -> HostFacts:
        """Have a keeper on the node; where the process that speaks to Ray has ended, by another one."""
        self.cluster.connect_again()
        name, address = self.host.name, self.host.address
        facts = decode_answer(self.cluster.call(lambda number: Open(number, name, address), OPEN_S))
        if not isinstance(facts, HostFacts):
            raise Unreachable(f"a strange answer: {type(facts).__name__}")
        if facts.keeper != self._keeper:  # whoever was there is gone
            self._keeper = facts.keeper
            for worker in list(self._holders):
                self._let_go(worker)
        return facts

    def call(self, request: KeeperRequest, timeout_s: float) -> KeeperAnswer:
        """Return the keeper's answer; a worker's units are reserved from its start to its end."""
        if isinstance(request, StartProcess) and (refused := self._hold(request)) is not None:
            return refused
        said = encode(request)
        answer = decode_answer(
            self.cluster.call(lambda number: Ask(number, self.host.name, said, timeout_s), timeout_s + SPARE_S)
        )
        if isinstance(answer, ProcessStates):
            for worker, state in answer.states.items():
                if state.ended:
                    self._let_go(worker)
        if isinstance(request, CloseKeeper):
            self.cluster.tell(Forget(self.host.name))
        return answer

    def close(self) -> None:
        """Hang up."""
        with suppress(Unreachable):
            self.cluster.tell(Forget(self.host.name))
        self.cluster.leave()

    def _hold(self, start: StartProcess) -> RequestRefused | None:
        """Reserve the units of a worker; say so where Ray has given them to somebody else."""
        if start.kind != "process" or not start.arguments:
            return None
        units = units_taken(msgspec.json.decode(start.arguments[0], type=RunWorker))
        resources = {name: each * units for name, each in self._unit.items()}
        key, address = self._key(start.name), self.host.address
        try:
            self.cluster.call(lambda number: Hold(number, key, address, resources, HOLD_S), HOLD_S + SPARE_S)
        except HostProblem as problem:
            return RequestRefused(error=problem.message, hint=problem.hint)
        self._holders.add(start.name)
        return None

    def _let_go(self, worker: str) -> None:
        """Give back the units of a worker, where it has any."""
        if worker in self._holders:
            self._holders.discard(worker)
            self.cluster.tell(LetGo(self._key(worker)))

    def _key(self, worker: str) -> str:
        """Return what a worker's reservation is called."""
        return f"{self.host.name}/{worker}"


def lines_of(head: str | None) -> tuple[list[RayConnection], float]:
    """Return lines to the nodes of the Ray cluster with a head at HEAD:PORT, or of the one that this machine is in.

    With them comes after how many seconds without a word a node counts as dead.
    """
    cluster = RayCluster(head or "auto", lost_s=LOST_S)
    connected = cluster.connect()
    hosts = hosts_of(connected.nodes)
    if not hosts:
        cluster.close()
        raise HostProblem(
            f"no node of the Ray cluster{f' at {head}' if head else ''} has a unit free",
            hint="start nodes with CPUs, GPUs or resources of your types: ray start --resources='{\"type\": 2}'",
        )
    return [RayConnection(cluster, host, connected.here, unit) for host, unit in hosts], LOST_S


def hosts_of(nodes: tuple[Node, ...]) -> list[tuple[Host, dict[str, float]]]:
    """Return a host for every type that a node has units of, and what one unit is to Ray.

    Types are the resources that whoever started the node gave it. A node without any has the types `cpu` and `gpu`.
    """
    found = []
    names = [node.name for node in nodes]
    for node in nodes:
        name = node.name if HOST_NAME.fullmatch(node.name) and names.count(node.name) == 1 else node.address
        types = {kind: int(count) for kind, count in node.free.items() if _is_type(kind)}
        units = {kind: {kind: 1.0} for kind in types}
        if not types:
            types = {"cpu": int(node.free.get("CPU", 0)), "gpu": int(node.free.get("GPU", 0))}
            units = {"cpu": {"CPU": 1.0}, "gpu": {"GPU": 1.0}}
        types = {kind: count for kind, count in types.items() if count >= 1}
        for kind, count in types.items():
            own = name if len(types) == 1 else f"{name}-{kind}"
            on_gpu = node.gpus > 0 and "cpu" not in kind.lower()
            host = Host(name=_as_name(own), address=node.address, type=kind, units=count, gpus=on_gpu)
            found.append((host, units[kind] | ({"GPU": 1.0} if on_gpu else {})))
    return found


def _is_type(resource: str) -> bool:
    """Say whether a resource is a type, and not one that Ray has by itself or for its groups."""
    return resource not in OWN and not resource.startswith(NO_TYPES) and "_group_" not in resource


def _as_name(name: str) -> str:
    """Return a name that can stand in a file's name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:64]
