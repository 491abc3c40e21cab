"""Messages between workers and servers."""

from __future__ import annotations

from dovetail.runtime.messages.kind import MessageKind


class Pull(MessageKind, frozen=True):
    """Rows of these tables, one array of distinct keys each, and the dense parameters where `dense`.

    Answered once the server has applied `version` steps; one that is `early` is answered at once, with the rows as they
    are, and without dense parameters where steps are missing. `Refresh` then brings what the steps change.
    """

    generation: int
    version: int
    tables: tuple[int, ...]
    dense: bool
    early: bool = False
    row_bits: int = 32
    """In which rows come, and `dense_bits` dense parameters: less than 32, as what changed since `base`."""
    dense_bits: int = 32
    base: int = -1
    """Which dense parameters the worker holds, as the server told it; -1 where it holds none."""
    cached: bool = False
    """Whether ages (`NOT_KEPT`, ...) follow, an array for each of keys: of rows that the worker keeps, few are sent."""
    number: int = -1
    """By which `Refresh` and `Push` name this pull, in the place of its keys; -1: they will not."""
    first: int = -1
    """Of a slice of the server's dense parameters: where it begins and ends; -1: all of them."""
    last: int = -1


class Pulled(MessageKind, frozen=True):
    """Arrays: the rows of each table, then the dense parameters.

    To a worker that keeps rows, of each table a bit for every key that says whether its row is sent, and those rows.
    """

    parked_s: float = 0.0
    """How long the server waited for the step before it could answer."""
    version: int = 0
    """How many steps the server has applied."""
    base: int = -1
    """What to call the dense parameters that the worker holds now, where they came in fewer bits."""


class Refresh(MessageKind, frozen=True):
    """Which rows of an early pull have changed `since` so many steps: named by its number, or its keys again.

    Answered, like a pull, once the server has applied `version` steps.
    """

    generation: int
    version: int
    since: int
    tables: tuple[int, ...]
    dense: bool
    row_bits: int = 32
    dense_bits: int = 32
    base: int = -1
    number: int = -1


class Refreshed(MessageKind, frozen=True):
    """Arrays: for each table the positions of keys whose rows changed, and the rows; then the dense parameters."""

    parked_s: float = 0.0
    base: int = -1


class Push(MessageKind, frozen=True):
    """Gradients of a task, summed over samples: for each table distinct keys and their gradients, then the dense ones.

    A task's gradients may come in several parts; the `last` part has the dense ones, and how many parts there were.
    Dense ones may also come before, in slices, each a part of its own.
    """

    generation: int
    step: int
    task: int
    worker: str
    part: int
    tables: tuple[int, ...]
    dense: bool
    last: bool
    positions: int
    """Of the data that the task covers, so far as the worker was told."""
    samples: int
    loss: float
    factor: float = 1.0
    pulls: tuple[int, ...] = ()
    """For each table the pull whose keys these are, in its order: they do not come again. -1: the keys are here."""
    places: tuple[int, ...] = ()
    """And which of that pull's tables."""
    first: int = -1
    """Of a slice: where it begins in the server's part of the dense gradients; -1: that is all of them."""


class Pushed(MessageKind, frozen=True):
    """The gradients arrived."""

    counts: bool = True
    """Whether they count: not where another attempt at the task does."""


class Forgotten(MessageKind, frozen=True):
    """The server does not remember a pull that was named: ask again, with keys."""


class AddUp(MessageKind, frozen=True):
    """Of a batch norm, what a worker's part of a step comes to; answered once those of all `batch` positions are there.

    Array, the bits of float64 as int64: forward, count, means and squared distances from them; `back`, zero and two
    sums of gradients. A task without samples comes to no norm: `place` -1.
    """

    generation: int
    step: int
    task: int
    worker: str
    place: int
    """How many norms came before it in the forward pass."""
    back: bool
    positions: int
    batch: int
    offset: int
    """Where its running mean and variance lie among those of all norms; -1 where it keeps none."""
    momentum: float


class AddedUp(MessageKind, frozen=True):
    """Array, of bits too: forward, count, means and variances of the whole batch; back, zero and the sums of all.

    A batch of one value has no spread: count is zero then, and means and variances are the running ones.
    """


class Stale(MessageKind, frozen=True):
    """The request is of another generation, or the task is not the worker's any more."""

    generation: int


# How a worker says, key by key, what it keeps of a server's rows: one byte each, beside the keys of a pull.
#
#   0        nothing: send the row
#   1 + n    the row as it was n steps before the one that is asked for: send it if a step has changed it since
#   255      the row, as new as this worker needs it: do not send it, whatever happened to it
NOT_KEPT = 0
MOST_STEPS = 2
"""Older rows are not offered: a server knows what its last step changed, and nothing of those before."""
NEW_ENOUGH = 255
