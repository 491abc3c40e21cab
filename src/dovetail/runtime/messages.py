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


class Hello(_Message, frozen=True):
    """I am here: the first message of a process, and the answer to `WhoAreYou`."""

    role: Role
    name: str
    process_id: int
    generation: int = 0
    version: int = -1
    """Of a server: steps applied; -1 before anything was loaded."""
    most_samples: int | None = None
    """Of a worker: samples whose task fits its free memory."""


class WhoAreYou(_Message, frozen=True):
    """The coordinator does not know the sender (it came back, or gave the sender up): say hello again."""


class Alive(_Message, frozen=True):
    """A sign of life."""

    name: str
    most_samples: int | None = None


class Stop(_Message, frozen=True):
    """The run is over, or has failed: end."""

    reason: str = ""


class Failed(_Message, frozen=True):
    """A process cannot go on."""

    name: str
    error: str
    hint: str = ""


# -- coordinator and servers -------------------------------------------------------------------------------------------


class Load(_Message, frozen=True):
    """Take up the state of a checkpoint."""

    generation: int
    step: int
    folder: str


class Adopt(_Message, frozen=True):
    """Keep your state, throw away what is under way, and go on as `generation`."""

    generation: int


class Ready(_Message, frozen=True):
    """A server has done what `Load` or `Adopt` asked for."""

    name: str
    generation: int
    version: int


class Accepted(_Message, frozen=True):
    """A server has all gradients of a task (in ssp and async: has applied them)."""

    name: str
    generation: int
    step: int
    task: int
    samples: int
    loss: float
    norm_square: float = 0.0


class Norm(_Message, frozen=True):
    """Tell the sum of squares of your part of the step's dense gradient."""

    generation: int
    step: int


class NormIs(_Message, frozen=True):
    """The answer to `Norm`."""

    name: str
    generation: int
    step: int
    square: float


class Commit(_Message, frozen=True):
    """Apply the step: its gradients times `scale`, with `factor` times the learning rates."""

    generation: int
    step: int
    scale: float
    dense_scale: float
    factor: float


class Committed(_Message, frozen=True):
    """A server has applied a step."""

    name: str
    generation: int
    step: int


class Save(_Message, frozen=True):
    """Write your part of the checkpoint into `folder`, as it is now; go on meanwhile."""

    generation: int
    step: int
    folder: str


class Saved(_Message, frozen=True):
    """A server's part of a checkpoint is on disk: its files, with their checksums."""

    name: str
    generation: int
    step: int
    files: dict[str, str]
    rows: dict[str, int]


class SaveFailed(_Message, frozen=True):
    """A server could not write its part of a checkpoint."""

    name: str
    generation: int
    step: int
    error: str
    hint: str


class ServerStats(_Message, frozen=True):
    """What a server holds and has done."""

    name: str
    rows: int
    memory_bytes: int
    pulled_keys: int
    pushed_keys: int
    busy_s: float


# -- coordinator and workers -------------------------------------------------------------------------------------------


class Reset(_Message, frozen=True):
    """Throw away what is under way and go on as `generation`."""

    generation: int


class Assign(_Message, frozen=True):
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


class More(_Message, frozen=True):
    """The worker is about to run out of work: in `busy_s`, of which it takes `fetch_s` to get new work ready."""

    generation: int
    step: int
    task: int
    busy_s: float = 0.0
    fetch_s: float = 0.0


class RanOut(_Message, frozen=True):
    """The worker has run out of work before `More` was answered."""

    generation: int


class Extend(_Message, frozen=True):
    """More positions for the task."""

    generation: int
    step: int
    task: int
    first: int
    last: int


class Close(_Message, frozen=True):
    """There is no more for this task: push its gradients."""

    generation: int
    step: int
    task: int


class Recall(_Message, frozen=True):
    """Put a task back that waits for its step: something else comes first, then it is given out again."""

    generation: int
    step: int
    task: int


class Span(msgspec.Struct, frozen=True, array_like=True):
    """What a worker did from when to when (seconds since the epoch)."""

    kind: Literal["compute", "fetch", "send", "wait", "reduce"]
    start_s: float
    end_s: float
    step: int


class Done(_Message, frozen=True):
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
    num_pieces: int = 0
    """Pieces of the tail among it, with their samples and what of `compute_s` they took."""
    piece_samples: int = 0
    piece_s: float = 0.0
    spans: tuple[Span, ...] = ()


class JoinRing(_Message, frozen=True):
    """Form a ring with these workers for this generation; the first keeps the meeting place."""

    generation: int
    members: tuple[str, ...]
    source: str
    """Whose dense parameters are right; empty where everyone loads the checkpoint's."""
    meeting: str = ""
    """Address of the meeting place; empty in the message to the first, who then says where it is."""
    folder: str = ""
    """The checkpoint to load dense parameters from, where `source` is empty."""


class RingMeets(_Message, frozen=True):
    """The first member of a ring says where the others find it."""

    name: str
    generation: int
    meeting: str


class InRing(_Message, frozen=True):
    """A worker has joined the ring and has the dense parameters."""

    name: str
    generation: int


class Reduced(_Message, frozen=True):
    """A worker holds the sum of the dense gradients of a step."""

    name: str
    generation: int
    step: int


class RingBroken(_Message, frozen=True):
    """A worker could not finish a collective."""

    name: str
    generation: int
    step: int
    error: str


class Apply(_Message, frozen=True):
    """The step is committed: update the dense parameters with the reduced gradient."""

    generation: int
    step: int
    scale: float
    factor: float


class SaveDense(_Message, frozen=True):
    """Write the dense parameters of a ring into `folder`."""

    generation: int
    step: int
    folder: str


# -- coordinator and launcher ------------------------------------------------------------------------------------------


class Died(_Message, frozen=True):
    """The launcher saw a process end."""

    name: str
    process_id: int
    how: str
    comes_back: bool


class Status(_Message, frozen=True):
    """Ask how the run goes."""


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


class Report(_Message, frozen=True):
    """How the run goes."""

    state: Literal["starting", "running", "going back", "saving", "done", "failed"]
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
    lost: tuple[tuple[str, int], ...] = ()
    """Processes, with their ids, that are not heard of any more: to be ended and started again."""
    error: str = ""
    hint: str = ""


class SaveNow(_Message, frozen=True):
    """Write a checkpoint as soon as a step is over, then stop where `stop` says so."""

    stop: bool = False


# -- workers and servers -----------------------------------------------------------------------------------------------


class Pull(_Message, frozen=True):
    """Rows of these tables, one array of distinct keys each, and the dense parameters where `dense`.

    Answered once the server has applied `version` steps.
    """

    generation: int
    version: int
    tables: tuple[int, ...]
    dense: bool


class Pulled(_Message, frozen=True):
    """Arrays: the rows of each table, then the dense parameters."""

    version: int
    parked_s: float = 0.0
    """How long the server waited for the step before it could answer."""


class Push(_Message, frozen=True):
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


class Pushed(_Message, frozen=True):
    """The gradients arrived; `applied_before` where another attempt at the task was first."""

    applied_before: bool = False


class Stale(_Message, frozen=True):
    """The request is of another generation, or the task is not the worker's any more."""

    generation: int


Message = (
    Hello | WhoAreYou | Alive | Stop | Failed
    | Load | Adopt | Ready | Accepted | Norm | NormIs | Commit | Committed | Save | Saved | SaveFailed | ServerStats
    | Reset | Assign | More | RanOut | Extend | Close | Recall | Done
    | JoinRing | RingMeets | InRing | Reduced | RingBroken | Apply | SaveDense
    | Died | Status | Report | SaveNow
    | Pull | Pulled | Push | Pushed | Stale
)  # fmt: skip
