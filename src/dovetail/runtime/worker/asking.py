"""Asking servers: one thread of a worker, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import AddUp, Stale
from dovetail.runtime.worker.wire import Wire
from dovetail.transport import LOOK_EVERY_S, Channel, Flow, Letter, Refused

LOOK_S = 0.05
"""How often a thread that waits for a server looks whether it should still wait."""


class Abandoned(Exception):  # noqa: N818 - nothing went wrong: the run goes on elsewhere
    """The request is not wanted any more: the run has gone back, or ends."""


class Asking:
    """A channel to each server; one thread uses them. `wanted()` of a request says whether to go on waiting."""

    def __init__(self, blueprint: Blueprint, channels: Sequence[Channel], wire: Wire) -> None:
        """Keep the channels, and what measures them."""
        self._blueprint, self._channels, self._wire = blueprint, channels, wire
        self._connections = [-1] * len(channels)
        """By which each server answered last."""
        self._flows: dict[int, Flow] = {}
        """Of what is under way, where links are measured."""

    def ask_one(
        self, number: int, message: AddUp, arrays: Sequence[NDArray[np.generic]], wanted: Callable[[], bool]
    ) -> Letter:
        """Return what one server answers."""
        return self._await(number, self._channels[number].ask(message, arrays), wanted)

    def _await(self, number: int, request: int, wanted: Callable[[], bool]) -> Letter:
        """Return the answer to a request, which has no deadline of its own: the coordinator watches the servers."""
        channel = self._channels[number]
        while True:
            letter = channel.receive(LOOK_EVERY_S if self._flows else LOOK_S)
            for flow in self._flows.values():
                flow.look()
            # A server that cannot even read a letter's number refuses it under none.
            if letter is not None and (letter.request == request or isinstance(letter.message, Refused)):
                if isinstance(letter.message, Stale):
                    raise self._abandoned()
                self._connections[number] = letter.connection
                return letter
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
