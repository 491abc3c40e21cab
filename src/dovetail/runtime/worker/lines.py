"""The lines from one thread of a worker to all servers: parameters in, gradients out."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import AddUp, Forgotten, Pull, Pulled, Push, Pushed, Refresh, Refreshed, Stale
from dovetail.runtime.process import Process
from dovetail.runtime.worker.keys import LookUp
from dovetail.transport import Channel, Letter, Refused

Floats = NDArray[np.float32]
LOOK_S = 0.05
"""How often a thread that waits for a server looks whether it should still wait."""


class Abandoned(Exception):  # noqa: N818 - nothing went wrong: the run goes on elsewhere
    """The request is not wanted any more: the run has gone back, or ends."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of each look-up, dense parameters where asked for, and how long the servers made us wait for a step."""

    look_ups: list[LookUp]
    """As the servers know them."""
    rows: list[Floats]
    dense: Floats | None
    parked_s: float


class Lines:
    """One line to each server; one thread uses them. `wanted()` of a request says whether to go on waiting."""

    def __init__(self, blueprint: Blueprint, channels: Sequence[Channel]) -> None:
        """Keep a channel to each server."""
        self._blueprint, self._channels = blueprint, channels
        self._widths = [table.width for table in blueprint.tables]
        self._slices = [blueprint.dense_slice(number) for number in range(blueprint.num_servers)]
        self._next_number = secrets.randbits(48)
        """Of pulls: no process has those of another, nor of one before it under the same name."""
        self._parked_s = self._exchange_s = 0.0
        """Of the last pull: how long it waited for a step, and how long it took apart from that."""

    def pull(
        self, generation: int, version: int, look_ups: Sequence[LookUp], *, dense: bool, wanted: Callable[[], bool],
        keep: bool = False,
    ) -> Answer:  # fmt: skip
        """Return rows and dense parameters as they are after at least `version` steps.

        With `keep`, servers remember the keys, and the push of their gradients does not bring them again.
        Where servers have not applied them yet, and waiting for that takes longer than an exchange, rows are fetched
        before, and those that a step changes again when it is applied.
        """
        early = bool(look_ups) and self._parked_s > self._exchange_s
        tables = tuple(each.table for each in look_ups)
        name = -1
        if keep and look_ups:
            name, self._next_number = self._next_number, self._next_number + 1
            look_ups = [replace(each, pull=name, place=place) for place, each in enumerate(look_ups)]
        pull = Pull(generation=generation, version=version, tables=tables, dense=dense, early=early, number=name)
        begun_s = time.perf_counter()
        rows = [np.empty((len(each.keys), self._widths[each.table]), dtype=np.float32) for each in look_ups]
        vector = np.empty(self._blueprint.dense_size, dtype=np.float32) if dense else None
        missing: dict[int, int] = {}
        parked_s = 0.0
        for number, letter in self._ask_all(pull, look_ups, range(len(self._channels)), wanted):
            pulled = letter.message
            if not isinstance(pulled, Pulled):
                raise self._unexpected(number, letter)
            for position, each in enumerate(look_ups):
                rows[position][each.of_server(number)] = letter.arrays[position]
            if pulled.version < version and early:
                missing[number] = pulled.version
            elif vector is not None:
                vector[self._slices[number]] = letter.arrays[-1]
            parked_s = max(parked_s, pulled.parked_s)
        self._exchange_s = time.perf_counter() - begun_s - parked_s
        for since in sorted(set(missing.values())):
            servers = [number for number in missing if missing[number] == since]
            refresh = Refresh(
                generation=generation, version=version, since=since, tables=tables, dense=dense, number=name
            )
            for number, letter in self._ask_all(refresh, look_ups, servers, wanted):
                if not isinstance(letter.message, Refreshed):
                    raise self._unexpected(number, letter)
                for position, each in enumerate(look_ups):
                    places, changed = letter.arrays[2 * position : 2 * position + 2]
                    rows[position][each.of_server(number)][places] = changed
                if vector is not None:
                    vector[self._slices[number]] = letter.arrays[-1]
                parked_s = max(parked_s, letter.message.parked_s)
        self._parked_s = parked_s
        return Answer(list(look_ups), rows, vector, parked_s)

    def _ask_all(
        self, message: Pull | Refresh, look_ups: Sequence[LookUp], servers: Sequence[int], wanted: Callable[[], bool]
    ) -> Iterator[tuple[int, Letter]]:
        """Ask servers for what they have of look-ups, all at once; yield their answers in turn."""
        is_named = isinstance(message, Refresh) and message.number >= 0

        def ask(number: int, *, named: bool) -> int:
            keys = [] if named else [each.keys[each.of_server(number)] for each in look_ups]
            return self._channels[number].ask(message, keys)

        requests = {number: ask(number, named=is_named) for number in servers}
        for number, request in requests.items():
            letter = self._await(number, request, wanted)
            if isinstance(letter.message, Forgotten) and is_named:
                letter = self._await(number, ask(number, named=False), wanted)
            yield number, letter

    def push(
        self,
        message: Push,
        gradients: Sequence[tuple[LookUp, Floats]],
        dense: Floats | None,
        wanted: Callable[[], bool],
    ) -> None:
        """Send gradients to the servers that own them, and wait until they have them."""
        named = [(look_up.pull, look_up.place) for look_up, _ in gradients]
        message = msgspec.structs.replace(
            message, pulls=tuple(pull for pull, _ in named), places=tuple(place for _, place in named)
        )
        requests = [self._ask_push(number, message, gradients, dense) for number in range(len(self._channels))]
        for number, request in enumerate(requests):
            letter = self._await(number, request, wanted)
            if isinstance(letter.message, Forgotten):
                with_keys = msgspec.structs.replace(message, pulls=(), places=())
                letter = self._await(number, self._ask_push(number, with_keys, gradients, dense), wanted)
            if not isinstance(letter.message, Pushed):
                raise self._unexpected(number, letter)

    def _ask_push(
        self, number: int, message: Push, gradients: Sequence[tuple[LookUp, Floats]], dense: Floats | None
    ) -> int:
        """Send a server what it owns of gradients; keys only of look-ups that it does not know by their pulls."""
        arrays: list[NDArray[np.generic]] = []
        for place, (look_up, values) in enumerate(gradients):
            mine = look_up.of_server(number)
            known = bool(message.pulls) and message.pulls[place] >= 0
            arrays += [values[mine]] if known else [look_up.keys[mine], values[mine]]
        if dense is not None:
            arrays.append(dense[self._slices[number]])
        return self._channels[number].ask(message, arrays)

    def ask_one(
        self, number: int, message: AddUp, arrays: Sequence[NDArray[np.generic]], wanted: Callable[[], bool]
    ) -> Letter:
        """Return what one server answers."""
        return self._await(number, self._channels[number].ask(message, arrays), wanted)

    def _await(self, number: int, request: int, wanted: Callable[[], bool]) -> Letter:
        """Return the answer to a request, which has no deadline of its own: the coordinator watches the servers."""
        channel = self._channels[number]
        while True:
            letter = channel.receive(LOOK_S)
            # A server that cannot even read a letter's number refuses it under none.
            if letter is not None and (letter.request == request or isinstance(letter.message, Refused)):
                if isinstance(letter.message, Stale):
                    raise self._abandoned()
                return letter
            if not wanted():
                raise self._abandoned()

    def _abandoned(self) -> Abandoned:
        """Let go of all requests under way: answers that still come go nowhere."""
        for channel in self._channels:
            channel.abandon()
        return Abandoned()

    def _unexpected(self, number: int, letter: Letter) -> TrainingError:
        """Return the complaint about an answer that makes no sense."""
        reason = letter.message.reason if isinstance(letter.message, Refused) else type(letter.message).__name__
        return TrainingError(
            f"{self._blueprint.servers[number].name} refused a request: {reason}",
            hint="all processes of a run must have the same version of Dovetail",
        )

    def close(self) -> None:
        """Close the lines."""
        for channel in self._channels:
            channel.close()


def lines_of(process: Process, purpose: str) -> Lines:
    """Return the lines of one of a worker's threads; `purpose` tells them from those of the others."""
    blueprint = process.blueprint
    widest = max([16, *(table.width for table in blueprint.tables)])
    rows_bytes = blueprint.run.training.micro_batch * 64 * widest * 4
    lane_bytes = 4 * blueprint.dense_size // blueprint.num_servers + rows_bytes + (1 << 20)
    return Lines(
        blueprint, [process.call(spec, suffix=f"/{purpose}", lane_bytes=lane_bytes) for spec in blueprint.servers]
    )


def now_s() -> float:
    """Return the time that spans of all processes are told in."""
    return time.time()
