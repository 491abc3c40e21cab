"""Messages between the coordinator and workers that keep dense parameters in a ring."""

from __future__ import annotations

from dovetail.runtime.messages.kind import MessageKind


class JoinRing(MessageKind, frozen=True):
    """Form a ring with these workers for this generation; the first keeps the meeting place."""

    generation: int
    era: int
    step: int
    """Steps that the dense parameters must hold."""
    members: tuple[str, ...]
    source: str
    """Whose dense parameters are right; empty where everyone loads the checkpoint's."""
    meeting: str = ""
    """Address of the meeting place; empty in the message to the first, who then says where it is."""
    folder: str = ""
    """The checkpoint to load dense parameters from, where `source` is empty."""


class Holds(MessageKind, frozen=True):
    """The answer to `Reset` of a worker that takes part in rings: which dense parameters it holds.

    What was told to apply before is applied; nothing changes them until the next ring.
    """

    name: str
    generation: int
    era: int
    version: int


class RingMeets(MessageKind, frozen=True):
    """The first member of a ring says where the others find it."""

    name: str
    generation: int
    meeting: str


class InRing(MessageKind, frozen=True):
    """A worker has joined the ring and has the dense parameters."""

    name: str
    generation: int
    version: int


class SumUp(MessageKind, frozen=True):
    """To workers of a later stage: every micro-batch of the step has been there and back; answered by `Reduced`."""

    generation: int
    step: int


class Reduced(MessageKind, frozen=True):
    """A worker holds the sum of the dense gradients of a step."""

    name: str
    generation: int
    step: int
    square: float = 0.0
    """Its squared norm, where gradients are clipped by it."""


class RingBroken(MessageKind, frozen=True):
    """A worker could not finish a collective."""

    name: str
    generation: int
    step: int
    error: str


class Apply(MessageKind, frozen=True):
    """The step is committed: update the dense parameters with the reduced gradient."""

    generation: int
    step: int
    scale: float
    factor: float


class SaveDense(MessageKind, frozen=True):
    """Write the dense parameters of a ring into `folder`."""

    generation: int
    number: int
    step: int
    folder: str
