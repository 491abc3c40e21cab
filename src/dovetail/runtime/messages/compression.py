"""Messages about numbers in fewer bits: what workers keep back, and which widths their links have."""

from __future__ import annotations

from dovetail.runtime.messages.kind import MessageKind


class AskResidual(MessageKind, frozen=True):
    """To workers, before a checkpoint: tell the servers what you keep back of dense gradients at `step`."""

    generation: int
    number: int
    """Of the checkpoint."""
    step: int
    """In ssp and async -1: as it is, for nothing is under way."""


class Residual(MessageKind, frozen=True):
    """To a server: what a worker keeps back, one array; answered by `Pushed`.

    For the checkpoint of that number a copy; with -1 the worker leaves, and the server has it from now on.
    """

    generation: int
    worker: str
    number: int = -1


class ResidualTold(MessageKind, frozen=True):
    """To the coordinator: every server has what this worker keeps back, for the checkpoint of that number."""

    name: str
    generation: int
    number: int


class Tuned(MessageKind, frozen=True):
    """To the coordinator: a link of a worker has another width, or what the last change of it brought is measured."""

    name: str
    generation: int
    link: str
    before: int
    bits: int
    reason: str
    gain: float
