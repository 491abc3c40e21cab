"""Messages between workers of unlike stages: activations forward, gradients back."""

from __future__ import annotations

from dovetail.runtime.messages.kind import MessageKind
from dovetail.runtime.messages.working import Span


class Forward(MessageKind, frozen=True):
    """What a stage reads of a micro-batch, from one of the stages before it; answered by `Returned`.

    The arrays are the fields of the batch and then the outputs of blocks. A stage that reads from several begins when
    it has heard from all of them.
    """

    generation: int
    step: int
    task: int
    head: str
    """Which process of the first stage the micro-batch belongs to, and the flight is which of its micro-batches."""
    flight: int
    sender: int
    """The stage that it comes from."""
    route: tuple[str, ...]
    """The worker of each stage after the first that the micro-batch goes to."""
    samples: int
    fields: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


class Returned(MessageKind, frozen=True):
    """The gradients of the outputs that came forward, in their order.

    To the first stage, what else came of the micro-batch: its loss, for each look-up in the tables a row of keys and
    their gradients, and the scores, where the stage has them.
    """

    loss: float | None = None
    tables: tuple[int, ...] = ()
    has_scores: bool = False
    stages_s: tuple[float, ...] = ()
    """How long each stage computed for it; where several are answered, one is told."""


class Collect(MessageKind, frozen=True):
    """A task is computed, and servers keep dense parameters: give the sum of its gradients; answered by `Collected`."""

    generation: int
    step: int
    task: int
    head: str


class Collected(MessageKind, frozen=True):
    """The dense gradients of a task over the stage's own parameters, where there are any."""


class StageSpans(MessageKind, frozen=True):
    """What a worker of a later stage did when, for the timeline."""

    name: str
    generation: int
    spans: tuple[Span, ...]


class Staff(MessageKind, frozen=True):
    """To workers of the first stage: somebody came, or is lost, in one of the stages after it."""

    generation: int
    stages: tuple[tuple[str, ...], ...]
