"""The lines from one thread of a worker to all servers: parameters in, gradients out."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.dense.slices import DenseSlice
from dovetail.runtime.messages import (
    Assign,
    Forgotten,
    Pull,
    Pulled,
    Push,
    Pushed,
    Refresh,
    Refreshed,
    Residual,
)
from dovetail.runtime.process import Process
from dovetail.runtime.worker.asking import Abandoned, Asking
from dovetail.runtime.worker.host_memory import HostMemory
from dovetail.runtime.worker.incoming import Incoming
from dovetail.runtime.worker.keys import LookUp
from dovetail.runtime.worker.push_part import PushPart
from dovetail.runtime.worker.wire import Wire
from dovetail.transport import Channel, Letter

Floats = NDArray[np.float32]
NO_SLICES: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of each look-up, dense parameters where asked for, and how long the servers made us wait for a step."""

    look_ups: list[LookUp]
    """As the servers know them."""
    rows: Sequence[Floats | Tensor]
    dense: Floats | None
    parked_s: float
    asked_s: float = 0.0
    """When the servers were asked last, on the clock of `time.perf_counter`."""


class Lines(Asking):
    """What goes over the lines to all servers."""

    def __init__(
        self,
        blueprint: Blueprint,
        channels: Sequence[Channel],
        wire: Wire | None = None,
        memory: HostMemory | None = None,
    ) -> None:
        """Keep a channel to each server, what says in how many bits numbers travel, and memory for what comes."""
        super().__init__(blueprint, channels, wire or Wire(blueprint))
        self.memory = memory or HostMemory()
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
    ) -> Answer:  # fmt: skip
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
        for number, letter in self._ask_all(pull, look_ups, range(len(self._channels)), wanted, rows.ages):
            pulled = letter.message
            if not isinstance(pulled, Pulled):
                raise self._unexpected(number, letter)
            rows.take_rows(number, letter.arrays, self._wire)
            if pulled.version < version and early:
                missing[number] = pulled.version
            elif vector is not None:
                vector[self._slices[number]] = self._wire.dense_down(number, letter.arrays[-1], pulled.base)
            parked_s = max(parked_s, pulled.parked_s)
        self._exchange_s = time.perf_counter() - begun_s - parked_s
        for since in sorted(set(missing.values())):
            servers, asked_s = [number for number in missing if missing[number] == since], time.perf_counter()
            refresh = Refresh(
                generation=generation, version=version, since=since, tables=tables, dense=dense, number=name
            )
            for number, letter in self._ask_all(refresh, look_ups, servers, wanted):
                if not isinstance(letter.message, Refreshed):
                    raise self._unexpected(number, letter)
                rows.take_changed(number, letter.arrays, self._wire)
                if vector is not None:
                    base = letter.message.base
                    vector[self._slices[number]] = self._wire.dense_down(number, letter.arrays[-1], base)
                parked_s = max(parked_s, letter.message.parked_s)
        self._parked_s = parked_s
        return Answer(list(look_ups), rows.whole(), vector, parked_s, asked_s)

    def _ask_all(
        self, message: Pull | Refresh, look_ups: Sequence[LookUp], servers: Sequence[int], wanted: Callable[[], bool],
        ages: Callable[[int], Sequence[NDArray[Any]]] = lambda _: (),
    ) -> Iterator[tuple[int, Letter]]:  # fmt: skip
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
            letter = self._await(number, request, wanted)
            if isinstance(letter.message, Forgotten) and is_named:
                letter = self._await(number, ask(number, named=False), wanted)
            took_s = time.perf_counter() - begun_s
            flow_s = self._flow_s(number)
            took_s = max(0.0, took_s - getattr(letter.message, "parked_s", 0.0))
            self._wire.answered(number, took_s if flow_s is None else min(took_s, flow_s))
            yield number, letter

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
                letter = self._await(number, request, wanted)
                if isinstance(letter.message, Forgotten):
                    again = parts[number].ask(self._channels[number], messages[number], with_keys=True)
                    letter = self._await(number, again, wanted)
                if not isinstance(letter.message, Pushed):
                    raise self._unexpected(number, letter)
                took_s = time.perf_counter() - begun_s
                flow_s = self._flow_s(number)
                took_s = took_s if flow_s is None else min(took_s, flow_s)
                self._wire.acknowledged(number, took_s, counts=letter.message.counts, dense=dense is not None)
        except Abandoned:
            if dense is not None:
                self._wire.abandoned()
            raise

    def pull_slices(
        self, assign: Assign, pieces: Sequence[DenseSlice], vector: Floats, wanted: Callable[[], bool]
    ) -> None:
        """Write slices of dense parameters, one a server, as they are before the step of a task."""
        pull = Pull(generation=assign.generation, version=assign.step, tables=(), dense=True)
        requests = [
            self._channels[each.server].ask(
                msgspec.structs.replace(pull, first=each.begins, last=each.begins + each.last - each.first)
            )
            for each in pieces
        ]
        for each, request in zip(pieces, requests, strict=True):
            letter = self._await(each.server, request, wanted)
            if not isinstance(letter.message, Pulled):
                raise self._unexpected(each.server, letter)
            vector[each.first : each.last] = letter.arrays[0]

    def push_slice(
        self, message: Push, server: int, numbers: Floats, wanted: Callable[[], bool], slices: Mapping[int, int]
    ) -> None:
        """Send a slice of dense gradients to its server, after those that went before, and wait until it has it."""
        message = _after_slices(message, slices.get(server, 0))
        letter = self._await(server, self._channels[server].ask(message, [numbers]), wanted)
        if not isinstance(letter.message, Pushed):
            raise self._unexpected(server, letter)

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
            letter = self._await(number, request, wanted)
            if not isinstance(letter.message, Pushed):
                raise self._unexpected(number, letter)


def lines_of(process: Process, purpose: str, wire: Wire | None = None, memory: HostMemory | None = None) -> Lines:
    """Return the lines of one of a worker's threads; `purpose` tells them from those of the others."""
    blueprint = process.blueprint
    widest = max([16, *(table.width for table in blueprint.tables)])
    rows_bytes = blueprint.run.training.micro_batch * 64 * widest * 4
    lane_bytes = 4 * blueprint.dense_size // blueprint.num_servers + rows_bytes + (1 << 20)
    channels = [process.call(spec, suffix=f"/{purpose}", lane_bytes=lane_bytes) for spec in blueprint.servers]
    return Lines(blueprint, channels, wire, memory)


def _after_slices(message: Push, slices: int) -> Push:
    """Return a push as one more part, after so many slices."""
    return msgspec.structs.replace(message, part=message.part + slices) if slices else message


def now_s() -> float:
    """Return the time that spans of all processes are told in."""
    return time.time()
