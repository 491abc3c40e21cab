"""Every message between the processes of a run.

The `generation` of a run goes up whenever work under way is thrown away: a server was lost, the coordinator came back,
a ring lost a member. Whoever gets a message of another generation refuses it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["server", "worker", "launcher"]


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """A message: its class name is its tag."""


# -- everyone and the coordinator --------------------------------------------------------------------------------------


class Hello(_Message):
    """I am here: the first message of a process, and the answer to `WhoAreYou`."""

    role: Role
    name: str
    process_id: int
    generation: int = 0
    version: int = -1
    """Of a server: steps applied; -1 before anything was loaded."""
    most_samples: int | None = None
    """Of a worker: samples whose task fits its free memory."""


class WhoAreYou(_Message):
    """The coordinator does not know the sender (it came back, or gave the sender up): say hello again."""


class Alive(_Message):
    """A sign of life."""

    name: str
    most_samples: int | None = None


class Stop(_Message):
    """The run is over, or has failed: end."""

    reason: str = ""


class Failed(_Message):
    """A process cannot go on."""

    name: str
    error: str
    hint: str = ""


# -- coordinator and servers -------------------------------------------------------------------------------------------


class Load(_Message):
    """Take up the state of a checkpoint."""

    generation: int
    step: int
    folder: str


class Adopt(_Message):
    """Keep your state, throw away what is under way, and go on as `generation`."""

    generation: int


class Ready(_Message):
    """A server has done what `Load` or `Adopt` asked for."""

    name: str
    generation: int
    version: int


class Accepted(_Message):
    """A server has all gradients of a task (in ssp and async: has applied them)."""

    name: str
    generation: int
    step: int
    task: int
    samples: int
    loss: float
    norm_square: float = 0.0


class Norm(_Message):
    """Tell the sum of squares of your part of the step's dense gradient."""

    generation: int
    step: int


class NormIs(_Message):
    """The answer to `Norm`."""

    name: str
    generation: int
    step: int
    square: float


class Commit(_Message):
    """Apply the step: its gradients times `scale`, with `factor` times the learning rates."""

    generation: int
    step: int
    scale: float
    dense_scale: float
    factor: float


class Committed(_Message):
    """A server has applied a step."""

    name: str
    generation: int
    step: int


class Save(_Message):
    """Write your part of the checkpoint into `folder`, as it is now; go on meanwhile."""

    generation: int
    step: int
    folder: str


class Saved(_Message):
    """A server's part of a checkpoint is on disk: its files, with their checksums."""

    name: str
    generation: int
    step: int
    files: dict[str, str]
    rows: dict[str, int]


class SaveFailed(_Message):
    """A server could not write its part of a checkpoint."""

    name: str
    step: int
    error: str
    hint: str


class ServerStats(_Message):
    """What a server holds and has done."""

    name: str
    rows: int
    memory_bytes: int
    pulled_keys: int
    pushed_keys: int
    busy_s: float


# -- coordinator and workers -------------------------------------------------------------------------------------------


class Reset(_Message):
    """Throw away what is under way and go on as `generation`."""

    generation: int


class Assign(_Message):
    """A task: compute the gradients of these positions of the epoch's order with the parameters after `step` steps.

    While the task is `open`, ask for `More` before the last part is computed.
    """

    generation: int
    step: int
    task: int
    epoch: int
    ranges: tuple[tuple[int, int], ...]
    is_open: bool
    factor: float = 1.0


class More(_Message):
    """The worker is about to run out of work."""

    generation: int
    step: int
    task: int


class Extend(_Message):
    """More positions for the task."""

    generation: int
    step: int
    task: int
    first: int
    last: int


class Close(_Message):
    """There is no more for this task: push its gradients."""

    generation: int
    step: int
    task: int


class Span(msgspec.Struct, frozen=True, array_like=True):
    """What a worker did from when to when (seconds since the epoch)."""

    kind: Literal["compute", "fetch", "send", "wait", "reduce"]
    start_s: float
    end_s: float
    step: int


class Done(_Message):
    """A task is pushed to all servers. Arrays: counts of clicked and other samples by score, where there are any."""

    name: str
    generation: int
    step: int
    task: int
    samples: int
    loss: float
    compute_s: float
    """Spent on samples: proportional to their number."""
    fixed_s: float
    """Spent on parameters and gradients: the same for any number."""
    wait_s: float
    """Idle, waiting for others, since the task before."""
    spans: tuple[Span, ...] = ()


class JoinRing(_Message):
    """Form a ring with these workers for this generation; the first keeps the meeting place."""

    generation: int
    members: tuple[str, ...]
    source: str
    """Whose dense parameters are right; empty where everyone loads the checkpoint's."""
    meeting: str = ""
    """Address of the meeting place; empty in the message to the first, who then says where it is."""
    folder: str = ""
    """The checkpoint to load dense parameters from, where `source` is empty."""


class RingMeets(_Message):
    """The first member of a ring says where the others find it."""

    name: str
    generation: int
    meeting: str


class InRing(_Message):
    """A worker has joined the ring and has the dense parameters."""

    name: str
    generation: int


class Reduced(_Message):
    """A worker holds the sum of the dense gradients of a step."""

    name: str
    generation: int
    step: int


class RingBroken(_Message):
    """A worker could not finish a collective."""

    name: str
    generation: int
    step: int
    error: str


class Apply(_Message):
    """The step is committed: update the dense parameters with the reduced gradient."""

    generation: int
    step: int
    scale: float
    factor: float


class SaveDense(_Message):
    """Write the dense parameters of a ring into `folder`."""

    generation: int
    step: int
    folder: str


# -- coordinator and launcher ------------------------------------------------------------------------------------------


class Died(_Message):
    """The launcher saw a process end."""

    name: str
    process_id: int
    how: str
    comes_back: bool


class Status(_Message):
    """How does the run go?"""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How a worker does."""

    name: str
    state: str
    share: float
    """Of the samples of the last steps."""
    samples_per_s: float
    """While it computes."""
    idle: float
    """The part of the last steps' time in which it waited."""
    samples: int


class Report(_Message):
    """How the run goes."""

    state: str
    generation: int
    step: int
    epoch: int
    samples: int
    """Done, over all epochs."""
    total_samples: int
    samples_per_s: float
    loss: float
    auc: float
    checkpoint_step: int
    workers: tuple[WorkerStatus, ...]
    servers: tuple[str, ...]
    events: tuple[str, ...]
    """What happened since the last report: deaths, restarts, checkpoints."""
    error: str = ""
    hint: str = ""


class SaveNow(_Message):
    """Write a checkpoint as soon as a step is over, then stop where `stop` says so."""

    stop: bool = False


# -- workers and servers -----------------------------------------------------------------------------------------------


class Pull(_Message):
    """Rows of these tables, one array of distinct keys each, and the dense parameters where `dense`.

    Answered once the server has applied `version` steps.
    """

    generation: int
    version: int
    tables: tuple[int, ...]
    dense: bool


class Pulled(_Message):
    """Arrays: the rows of each table, then the dense parameters."""

    version: int
    parked_s: float = 0.0
    """How long the server waited for the step before it could answer."""


class Push(_Message):
    """Gradients of a task, summed over samples: for each table distinct keys and their gradients, then the dense ones.

    A task's gradients may come in several parts; the `last` part has the dense ones, and how many parts there were.
    """

    generation: int
    step: int
    task: int
    worker: str
    part: int
    tables: tuple[int, ...]
    dense: bool
    last: bool
    samples: int
    loss: float
    factor: float = 1.0


class Pushed(_Message):
    """The gradients arrived; `applied_before` where another attempt at the task was first."""

    applied_before: bool = False


class Stale(_Message):
    """The request is of another generation, or the task is not the worker's any more."""

    generation: int


Message = (
    Hello | WhoAreYou | Alive | Stop | Failed
    | Load | Adopt | Ready | Accepted | Norm | NormIs | Commit | Committed | Save | Saved | SaveFailed | ServerStats
    | Reset | Assign | More | Extend | Close | Done
    | JoinRing | RingMeets | InRing | Reduced | RingBroken | Apply | SaveDense
    | Died | Status | Report | SaveNow
    | Pull | Pulled | Push | Pushed | Stale
)  # fmt: skip
