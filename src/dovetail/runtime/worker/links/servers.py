"""The connections from one thread of a worker to all servers: parameters in, gradients out."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.dense.buckets import Bucket
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import (
    AddUp,
    Agree,
    Agreed,
    Assign,
    Forgotten,
    MaskedPush,
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

Floats = NDArray[np.float32]
Wanted = Callable[[], bool]
Kind = TypeVar("Kind")
LOOK_S = 0.05
"""How often a thread that waits for a server looks whether it should still wait."""
NO_BUCKETS: Mapping[int, int] = {}


class Abandoned(Exception):  # noqa: N818 - nothing went wrong: the run goes on elsewhere
    """The request is not wanted any more: the run has gone back, or ends."""


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


class ServerConnections:
    """A channel to each server; one thread uses them. `wanted()` of a request says whether to go on waiting."""

    def __init__(
        self,
        blueprint: Blueprint,
        channels: Sequence[Channel],
        compression: LinkCompression | None = None,
        memory: PinnedMemory | None = None,
    ) -> None:
        """Keep the channels, what says in how many bits numbers travel, and memory for what comes."""
        self._blueprint, self._channels = blueprint, channels
        self.compression, self.memory = compression or LinkCompression(blueprint), memory or PinnedMemory()
        self._are_near = all(channel.is_near for channel in channels)
        self._widths = [table.width for table in blueprint.tables]
        self._parts = [blueprint.dense_slice(number) for number in range(blueprint.num_servers)]
        self._next_number = secrets.randbits(48)
        """Of pulls: no process has those of another, nor of one before it under the same name."""
        self._parked_s = self._exchange_s = 0.0
        """Of the last pull: how long it waited for a step, and how long it took apart from that."""
        self._sockets = [-1] * len(channels)
        """By which each server answered last."""
        self._flows: dict[int, Flow] = {}
        """Of what is under way, where links are measured."""

    def close(self) -> None:
        """Close the channels."""
        for channel in self._channels:
            channel.close()

    # -- parameters in -------------------------------------------------------------------------------------------------

    def pull(
        self,
        generation: int,
        version: int,
        look_ups: Sequence[LookUp],
        *,
        dense: bool,
        wanted: Wanted,
        keep: bool = False,
        incoming: Incoming | None = None,
    ) -> PullResult:
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
            generation=generation,
            version=version,
            tables=tables,
            dense=dense,
            early=early,
            number=name,
            cached=rows.is_cached,
        )
        begun_s = asked_s = time.perf_counter()
        vector = self.memory.floats(self._blueprint.dense_size) if dense else None
        missing: dict[int, int] = {}
        parked_s = 0.0
        for number, envelope in self._ask_all(pull, look_ups, range(len(self._channels)), wanted, rows.ages):
            pulled = self._checked(number, envelope, Pulled)
            rows.take_rows(number, envelope.arrays, self.compression)
            if pulled.version < version and early:
                missing[number] = pulled.version
            elif vector is not None:
                vector[self._parts[number]] = self.compression.dense_down(number, envelope.arrays[-1], pulled.base)
            parked_s = max(parked_s, pulled.parked_s)
        self._exchange_s = time.perf_counter() - begun_s - parked_s
        for since in sorted(set(missing.values())):
            servers, asked_s = [number for number in missing if missing[number] == since], time.perf_counter()
            refresh = Refresh(
                generation=generation, version=version, since=since, tables=tables, dense=dense, number=name
            )
            for number, envelope in self._ask_all(refresh, look_ups, servers, wanted):
                refreshed = self._checked(number, envelope, Refreshed)
                rows.take_changed(number, envelope.arrays, self.compression)
                if vector is not None:
                    vector[self._parts[number]] = self.compression.dense_down(
                        number, envelope.arrays[-1], refreshed.base
                    )
                parked_s = max(parked_s, refreshed.parked_s)
        self._parked_s = parked_s
        return PullResult(list(look_ups), rows.whole(), vector, parked_s, asked_s)

    def _ask_all(
        self,
        message: Pull | Refresh,
        look_ups: Sequence[LookUp],
        servers: Sequence[int],
        wanted: Wanted,
        ages: Callable[[int], Sequence[NDArray[Any]]] = lambda _: (),
    ) -> Iterator[tuple[int, Envelope]]:
        """Ask servers for what they have of look-ups, all at once; yield their answers in turn.

        `ages` says what a server is told of rows that are here.
        """
        begun_s = time.perf_counter()
        is_named = isinstance(message, Refresh) and message.number >= 0

        def ask(number: int, *, named: bool) -> int:
            wants = self.compression.wants(number)
            asked = msgspec.structs.replace(message, **wants) if wants else message
            keys = [] if named else [each.keys[each.of_server(number)] for each in look_ups]
            self._watch(number, "down")
            return self._channels[number].ask(asked, [*keys, *ages(number)])

        requests = {number: ask(number, named=is_named) for number in servers}
        for number, request in requests.items():
            envelope = self._await(number, request, wanted)
            if isinstance(envelope.message, Forgotten) and is_named:
                envelope = self._await(number, ask(number, named=False), wanted)
            took_s = time.perf_counter() - begun_s - getattr(envelope.message, "parked_s", 0.0)
            self.compression.answered(number, self._on_the_way_s(number, max(0.0, took_s)))
            yield number, envelope

    def pull_buckets(self, assign: Assign, pieces: Sequence[Bucket], vector: Floats, wanted: Wanted) -> None:
        """Write buckets of dense parameters, one a server, as they are before the step of a task."""
        pull = Pull(generation=assign.generation, version=assign.step, tables=(), dense=True)
        requests = [
            self._channels[each.server].ask(
                msgspec.structs.replace(pull, first=each.begins, last=each.begins + each.last - each.first)
            )
            for each in pieces
        ]
        for each, request in zip(pieces, requests, strict=True):
            envelope = self._await(each.server, request, wanted)
            self._checked(each.server, envelope, Pulled)
            vector[each.first : each.last] = envelope.arrays[0]

    # -- gradients out -------------------------------------------------------------------------------------------------

    def push(
        self,
        message: Push,
        gradients: Sequence[tuple[LookUp, Floats]],
        dense: Floats | None,
        wanted: Wanted,
        buckets: Mapping[int, int] = NO_BUCKETS,
    ) -> None:
        """Send gradients to the servers that own them, and wait until they have them; so many `buckets` went before."""
        begun_s = time.perf_counter()
        if dense is not None:
            self.compression.begin(message.step)
        parts = [self._part_of(number, gradients, dense) for number in range(len(self._channels))]
        for number in range(len(parts)):
            self._watch(number, "up")
        messages = [_after_buckets(message, buckets.get(number, 0)) for number in range(len(parts))]
        requests = [parts[number].ask(self._channels[number], messages[number]) for number in range(len(parts))]
        try:
            for number, request in enumerate(requests):
                envelope = self._await(number, request, wanted)
                if isinstance(envelope.message, Forgotten):
                    again = parts[number].ask(self._channels[number], messages[number], with_keys=True)
                    envelope = self._await(number, again, wanted)
                pushed = self._checked(number, envelope, Pushed)
                took_s = self._on_the_way_s(number, time.perf_counter() - begun_s)
                self.compression.acknowledged(number, took_s, counts=pushed.counts, dense=dense is not None)
        except Abandoned:
            if dense is not None:
                self.compression.abandoned()
            raise

    def _part_of(self, number: int, gradients: Sequence[tuple[LookUp, Floats]], dense: Floats | None) -> PushPart:
        """Return what a server owns of gradients, packed once: what is kept back of them is known then."""
        mine = [(look_up, look_up.of_server(number), values) for look_up, values in gradients]
        return PushPart(
            [look_up for look_up, _, _ in mine],
            [look_up.keys[part] for look_up, part, _ in mine],
            [self.compression.rows_up(number, values[part]) for _, part, values in mine],
            None if dense is None else self.compression.dense_up(number, dense),
        )

    def push_bucket(
        self, message: Push, server: int, numbers: Floats, wanted: Wanted, buckets: Mapping[int, int]
    ) -> None:
        """Send a bucket of dense gradients to its server, after those that went before, and wait until it has it."""
        message = _after_buckets(message, buckets.get(server, 0))
        self._checked(server, self._await(server, self._channels[server].ask(message, [numbers]), wanted), Pushed)

    def agree(self, message: Agree, keys: Sequence[Sequence[Keys]], wanted: Wanted) -> list[list[Keys]]:
        """Tell each server the keys of this worker's rows; return, of each, those of all workers of the step."""
        requests = [channel.ask(message, mine) for channel, mine in zip(self._channels, keys, strict=True)]
        agreed: list[list[Keys]] = []
        for number, request in enumerate(requests):
            envelope = self._await(number, request, wanted)
            self._checked(number, envelope, Agreed)
            agreed.append([np.array(each, dtype=np.int64) for each in envelope.arrays])
        return agreed

    def push_masked(self, message: MaskedPush, words: Sequence[NDArray[np.int32]], wanted: Wanted) -> None:
        """Send each server its words, and wait until they have them."""
        requests = [channel.ask(message, [mine]) for channel, mine in zip(self._channels, words, strict=True)]
        for number, request in enumerate(requests):
            self._checked(number, self._await(number, request, wanted), Pushed)

    def tell_residual(self, message: Residual, kept: Floats, wanted: Wanted) -> None:
        """Tell every server its part of what this worker keeps back of dense gradients."""
        requests = [
            channel.ask(message, [kept[part]]) for channel, part in zip(self._channels, self._parts, strict=True)
        ]
        for number, request in enumerate(requests):
            self._checked(number, self._await(number, request, wanted), Pushed)

    def ask_one(self, number: int, message: AddUp, arrays: Sequence[NDArray[np.generic]], wanted: Wanted) -> Envelope:
        """Return what one server answers."""
        return self._await(number, self._channels[number].ask(message, arrays), wanted)

    # -- a request and its answer --------------------------------------------------------------------------------------

    def _await(self, number: int, request: int, wanted: Wanted) -> Envelope:
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
                self._sockets[number] = envelope.connection
                return envelope
            if not wanted():
                raise self._abandoned()

    def _abandoned(self) -> Abandoned:
        """Let go of all requests under way: answers that still come go nowhere."""
        self._flows.clear()
        for channel in self._channels:
            channel.abandon()
        return Abandoned()

    def _checked(self, number: int, envelope: Envelope, kind: type[Kind]) -> Kind:
        """Return the message of an answer, which is of a kind; complain about one that makes no sense."""
        message = envelope.message
        if isinstance(message, kind):
            return message
        reason = message.reason if isinstance(message, Refused) else type(message).__name__
        raise TrainingError(
            f"{self._blueprint.servers[number].name} refused a request: {reason}",
            hint="all processes of a run must have the same version of Dovetail",
        )

    def _watch(self, number: int, way: Literal["up", "down"]) -> None:
        """Look at what goes to a server or comes from it from now on, where that is to be measured."""
        if self.compression.measures and self._sockets[number] >= 0:
            self._flows[number] = Flow(self._sockets[number], way)

    def _on_the_way_s(self, number: int, took_s: float) -> float:
        """Return how long what was watched was on its way, where anybody knows; else how long the exchange took."""
        flow = self._flows.pop(number, None)
        flow_s = None if flow is None else flow.seconds()
        return took_s if flow_s is None else min(took_s, flow_s)


def connect_to_servers(
    process: Process, purpose: str, compression: LinkCompression | None = None, memory: PinnedMemory | None = None
) -> ServerConnections:
    """Return the connections of one of a worker's threads; `purpose` tells them from those of the others."""
    blueprint = process.blueprint
    widest = max([16, *(table.width for table in blueprint.tables)])
    rows_bytes = blueprint.run.training.micro_batch * 64 * widest * 4
    lane_bytes = 4 * blueprint.dense_size // blueprint.num_servers + rows_bytes + (1 << 20)
    channels = [process.call(spec, suffix=f"/{purpose}", lane_bytes=lane_bytes) for spec in blueprint.servers]
    return ServerConnections(blueprint, channels, compression, memory)


def _after_buckets(message: Push, buckets: int) -> Push:
    """Return a push as one more part, after so many buckets."""
    return msgspec.structs.replace(message, part=message.part + buckets) if buckets else message
