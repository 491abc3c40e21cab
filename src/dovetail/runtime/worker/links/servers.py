"""The connections from one thread of a worker to all servers: parameters in, gradients out."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.dense.buckets import Bucket
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import (
    AddUp,
    Assign,
    Forgotten,
    Pull,
    Pulled,
    Push,
    Pushed,
    Refresh,
    Refreshed,
    Residual,
    Stale,
)
from dovetail.runtime.process import Process
from dovetail.runtime.worker.links.compression import LinkCompression
from dovetail.runtime.worker.rows.incoming import Incoming
from dovetail.runtime.worker.rows.keys import Keys, LookUp
from dovetail.runtime.worker.rows.pinned_memory import PinnedMemory
from dovetail.transport import LOOK_EVERY_S, Channel, Envelope, Flow, Refused

LOOK_S = 0.05
"""How often a thread that waits for a server looks whether it should still wait."""


class Abandoned(Exception):  # noqa: N818 - nothing went wrong: the run goes on elsewhere
    """The request is not wanted any more: the run has gone back, or ends."""


class ServerChannels:
    """A channel to each server; one thread uses them. `wanted()` of a request says whether to go on waiting."""

    def __init__(self, blueprint: Blueprint, channels: Sequence[Channel], wire: LinkCompression) -> None:
        """Keep the channels, and what measures them."""
        self._blueprint, self._channels, self._wire = blueprint, channels, wire
        self._connections = [-1] * len(channels)
        """By which each server answered last."""
        self._flows: dict[int, Flow] = {}
        """Of what is under way, where links are measured."""

    def ask_one(
        self, number: int, message: AddUp, arrays: Sequence[NDArray[np.generic]], wanted: Callable[[], bool]
    ) -> Envelope:
        """Return what one server answers."""
        return self._await(number, self._channels[number].ask(message, arrays), wanted)

    def _await(self, number: int, request: int, wanted: Callable[[], bool]) -> Envelope:
        """Return the answer to a request, which has no deadline of its own: the coordinator watches the servers."""
        channel = self._channels[number]
        while True:
            envelope = channel.receive(LOOK_EVERY_S if self._flows else LOOK_S)
            for flow in self._flows.values():
                flow.look()
            # A server that cannot even read an envelope's number refuses it under none.
            if envelope is not None and (envelope.request == request or isinstance(envelope.message, Refused)):
                if isinstance(envelope.message, Stale):
                    raise self._abandoned()
                self._connections[number] = envelope.connection
                return envelope
            if not wanted():
                raise self._abandoned()

    def _watch(self, number: int, way: Literal["up", "down"]) -> None:
        """Look at what goes to a server or comes from it from now on, where that is to be measured."""
        if self._wire.measures and self._connections[number] >= 0:
            self._flows[number] = Flow(self._connections[number], way)

    def _flow_s(self, number: int) -> float | None:
        """Return how long what was watched was on its way, where anybody knows."""
        flow = self._flows.pop(number, None)
        return None if flow is None else flow.seconds()

    def _abandoned(self) -> Abandoned:
        """Let go of all requests under way: answers that still come go nowhere."""
        self._flows.clear()
        for channel in self._channels:
            channel.abandon()
        return Abandoned()

    def _unexpected(self, number: int, envelope: Envelope) -> TrainingError:
        """Return the complaint about an answer that makes no sense."""
        reason = envelope.message.reason if isinstance(envelope.message, Refused) else type(envelope.message).__name__
        return TrainingError(
            f"{self._blueprint.servers[number].name} refused a request: {reason}",
            hint="all processes of a run must have the same version of Dovetail",
        )

    def close(self) -> None:
        """Close the lines."""
        for channel in self._channels:
            channel.close()


@dataclass(frozen=True, slots=True)
class PushPart:
    """By look-up: its keys and its gradients that are the server's; then the dense ones."""

    look_ups: Sequence[LookUp]
    keys: Sequence[Keys]
    rows: Sequence[NDArray[Any]]
    dense: NDArray[Any] | None

    def ask(self, channel: Channel, message: Push, *, with_keys: bool = False) -> int:
        """Send it; look-ups whose pull the server knows are named, unless it wants keys after all."""
        pulls = [-1 if with_keys else look_up.pull for look_up in self.look_ups]
        arrays: list[NDArray[Any]] = []
        for pull, keys, values in zip(pulls, self.keys, self.rows, strict=True):
            arrays += [values] if pull >= 0 else [keys, values]
        if self.dense is not None:
            arrays.append(self.dense)
        places = tuple(look_up.place for look_up in self.look_ups)
        return channel.ask(msgspec.structs.replace(message, pulls=tuple(pulls), places=places), arrays)


Floats = NDArray[np.float32]
NO_SLICES: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class PullResult:
    """Rows of each look-up, dense parameters where asked for, and how long the servers made us wait for a step."""

    look_ups: list[LookUp]
    """As the servers know them."""
    rows: Sequence[Floats | Tensor]
    dense: Floats | None
    parked_s: float
    asked_s: float = 0.0
    """When the servers were asked last, on the clock of `time.perf_counter`."""


class ServerConnections(ServerChannels):
    """What goes over the lines to all servers."""

    def __init__(
        self,
        blueprint: Blueprint,
        channels: Sequence[Channel],
        wire: LinkCompression | None = None,
        memory: PinnedMemory | None = None,
    ) -> None:
        """Keep a channel to each server, what says in how many bits numbers travel, and memory for what comes."""
        super().__init__(blueprint, channels, wire or LinkCompression(blueprint))
        self.memory = memory or PinnedMemory()
        self._are_near = all(channel.is_near for channel in channels)
        self._widths = [table.width for table in blueprint.tables]
        self._slices = [blueprint.dense_slice(number) for number in range(blueprint.num_servers)]
        self._next_number = secrets.randbits(48)
        """Of pulls: no process has those of another, nor of one before it under the same name."""
        self._parked_s = self._exchange_s = 0.0
        """Of the last pull: how long it waited for a step, and how long it took apart from that."""

    def pull(
        self, generation: int, version: int, look_ups: Sequence[LookUp], *, dense: bool, wanted: Callable[[], bool],
        keep: bool = False, incoming: Incoming | None = None,
    ) -> PullResult:  # fmt: skip
        """Return rows and dense parameters as they are after at least `version` steps.

        With `keep`, servers remember the keys, and the push of their gradients does not bring them again. `incoming`
        knows rows that need not come.
        Where servers have not applied them yet, those on this host read rows into shared memory meanwhile, and again
        those that the step changes. From others, where waiting takes longer than an exchange, rows are fetched before,
        and those that a step changes again when it is applied.
        """
        early = bool(look_ups) and self._parked_s > self._exchange_s and not self._are_near
        tables = tuple(each.table for each in look_ups)
        name = -1
        if keep and look_ups:
            name, self._next_number = self._next_number, self._next_number + 1
            look_ups = [replace(each, pull=name, place=place) for place, each in enumerate(look_ups)]
        rows = incoming or Incoming(look_ups, self._widths, self.memory)
        pull = Pull(
            generation=generation, version=version, tables=tables, dense=dense, early=early, number=name,
            cached=rows.is_cached,
        )  # fmt: skip
        begun_s = asked_s = time.perf_counter()
        vector = self.memory.floats(self._blueprint.dense_size) if dense else None
        missing: dict[int, int] = {}
        parked_s = 0.0
        for number, envelope in self._ask_all(pull, look_ups, range(len(self._channels)), wanted, rows.ages):
            pulled = envelope.message
            if not isinstance(pulled, Pulled):
                raise self._unexpected(number, envelope)
            rows.take_rows(number, envelope.arrays, self._wire)
            if pulled.version < version and early:
                missing[number] = pulled.version
            elif vector is not None:
                vector[self._slices[number]] = self._wire.dense_down(number, envelope.arrays[-1], pulled.base)
            parked_s = max(parked_s, pulled.parked_s)
        self._exchange_s = time.perf_counter() - begun_s - parked_s
        for since in sorted(set(missing.values())):
            servers, asked_s = [number for number in missing if missing[number] == since], time.perf_counter()
            refresh = Refresh(
                generation=generation, version=version, since=since, tables=tables, dense=dense, number=name
            )
            for number, envelope in self._ask_all(refresh, look_ups, servers, wanted):
                if not isinstance(envelope.message, Refreshed):
                    raise self._unexpected(number, envelope)
                rows.take_changed(number, envelope.arrays, self._wire)
                if vector is not None:
                    base = envelope.message.base
                    vector[self._slices[number]] = self._wire.dense_down(number, envelope.arrays[-1], base)
                parked_s = max(parked_s, envelope.message.parked_s)
        self._parked_s = parked_s
        return PullResult(list(look_ups), rows.whole(), vector, parked_s, asked_s)

    def _ask_all(
        self, message: Pull | Refresh, look_ups: Sequence[LookUp], servers: Sequence[int], wanted: Callable[[], bool],
        ages: Callable[[int], Sequence[NDArray[Any]]] = lambda _: (),
    ) -> Iterator[tuple[int, Envelope]]:  # fmt: skip
        """Ask servers for what they have of look-ups, all at once; yield their answers in turn.

        `ages` says what a server is told of rows that are here.
        """
        begun_s = time.perf_counter()
        is_named = isinstance(message, Refresh) and message.number >= 0

        def ask(number: int, *, named: bool) -> int:
            wants = self._wire.wants(number)
            asked = msgspec.structs.replace(message, **wants) if wants else message
            keys = [] if named else [each.keys[each.of_server(number)] for each in look_ups]
            self._watch(number, "down")
            return self._channels[number].ask(asked, [*keys, *ages(number)])

        requests = {number: ask(number, named=is_named) for number in servers}
        for number, request in requests.items():
            envelope = self._await(number, request, wanted)
            if isinstance(envelope.message, Forgotten) and is_named:
                envelope = self._await(number, ask(number, named=False), wanted)
            took_s = time.perf_counter() - begun_s
            flow_s = self._flow_s(number)
            took_s = max(0.0, took_s - getattr(envelope.message, "parked_s", 0.0))
            self._wire.answered(number, took_s if flow_s is None else min(took_s, flow_s))
            yield number, envelope

    def push(
        self,
        message: Push,
        gradients: Sequence[tuple[LookUp, Floats]],
        dense: Floats | None,
        wanted: Callable[[], bool],
        slices: Mapping[int, int] = NO_SLICES,
    ) -> None:
        """Send gradients to the servers that own them, and wait until they have them; so many `slices` went before."""
        begun_s = time.perf_counter()
        if dense is not None:
            self._wire.begin(message.step)
        parts = [self._part_of(number, gradients, dense) for number in range(len(self._channels))]
        for number in range(len(parts)):
            self._watch(number, "up")
        messages = [_after_slices(message, slices.get(number, 0)) for number in range(len(parts))]
        requests = [parts[number].ask(self._channels[number], messages[number]) for number in range(len(parts))]
        try:
            for number, request in enumerate(requests):
                envelope = self._await(number, request, wanted)
                if isinstance(envelope.message, Forgotten):
                    again = parts[number].ask(self._channels[number], messages[number], with_keys=True)
                    envelope = self._await(number, again, wanted)
                if not isinstance(envelope.message, Pushed):
                    raise self._unexpected(number, envelope)
                took_s = time.perf_counter() - begun_s
                flow_s = self._flow_s(number)
                took_s = took_s if flow_s is None else min(took_s, flow_s)
                self._wire.acknowledged(number, took_s, counts=envelope.message.counts, dense=dense is not None)
        except Abandoned:
            if dense is not None:
                self._wire.abandoned()
            raise

    def pull_slices(self, assign: Assign, pieces: Sequence[Bucket], vector: Floats, wanted: Callable[[], bool]) -> None:
        """Write slices of dense parameters, one a server, as they are before the step of a task."""
        pull = Pull(generation=assign.generation, version=assign.step, tables=(), dense=True)
        requests = [
            self._channels[each.server].ask(
                msgspec.structs.replace(pull, first=each.begins, last=each.begins + each.last - each.first)
            )
            for each in pieces
        ]
        for each, request in zip(pieces, requests, strict=True):
            envelope = self._await(each.server, request, wanted)
            if not isinstance(envelope.message, Pulled):
                raise self._unexpected(each.server, envelope)
            vector[each.first : each.last] = envelope.arrays[0]

    def push_slice(
        self, message: Push, server: int, numbers: Floats, wanted: Callable[[], bool], slices: Mapping[int, int]
    ) -> None:
        """Send a slice of dense gradients to its server, after those that went before, and wait until it has it."""
        message = _after_slices(message, slices.get(server, 0))
        envelope = self._await(server, self._channels[server].ask(message, [numbers]), wanted)
        if not isinstance(envelope.message, Pushed):
            raise self._unexpected(server, envelope)

    def _part_of(self, number: int, gradients: Sequence[tuple[LookUp, Floats]], dense: Floats | None) -> PushPart:
        """Return what a server owns of gradients, packed once: what is kept back of them is known then."""
        mine = [(look_up, look_up.of_server(number), values) for look_up, values in gradients]
        return PushPart(
            [look_up for look_up, _, _ in mine],
            [look_up.keys[part] for look_up, part, _ in mine],
            [self._wire.rows_up(number, values[part]) for _, part, values in mine],
            None if dense is None else self._wire.dense_up(number, dense),
        )

    def tell_residual(self, message: Residual, kept: Floats, wanted: Callable[[], bool]) -> None:
        """Tell every server its part of what this worker keeps back of dense gradients."""
        requests = [
            channel.ask(message, [kept[part]]) for channel, part in zip(self._channels, self._slices, strict=True)
        ]
        for number, request in enumerate(requests):
            envelope = self._await(number, request, wanted)
            if not isinstance(envelope.message, Pushed):
                raise self._unexpected(number, envelope)


def connect_to_servers(
    process: Process, purpose: str, wire: LinkCompression | None = None, memory: PinnedMemory | None = None
) -> ServerConnections:
    """Return the lines of one of a worker's threads; `purpose` tells them from those of the others."""
    blueprint = process.blueprint
    widest = max([16, *(table.width for table in blueprint.tables)])
    rows_bytes = blueprint.run.training.micro_batch * 64 * widest * 4
    lane_bytes = 4 * blueprint.dense_size // blueprint.num_servers + rows_bytes + (1 << 20)
    channels = [process.call(spec, suffix=f"/{purpose}", lane_bytes=lane_bytes) for spec in blueprint.servers]
    return ServerConnections(blueprint, channels, wire, memory)


def _after_slices(message: Push, slices: int) -> Push:
    """Return a push as one more part, after so many slices."""
    return msgspec.structs.replace(message, part=message.part + slices) if slices else message


def now_s() -> float:
    """Return the time that spans of all processes are told in."""
    return time.time()
