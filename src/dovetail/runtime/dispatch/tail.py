"""The last part of a step, cut small and taken by whoever is free.

Predictions are off by some percent, so most of a batch is split by them and the rest, the tail, evens out what they
missed: a worker that is done with its main task asks for a piece of the tail, and again, until nothing remains.

The driver of a step, at every moment at which a worker is free and something remains:

    left_s = seconds_left(remaining, the others with the seconds until each is free)
    pieces = grant(worker, remaining, left_s, step_s=plan.step_s)

A worker that is granted nothing waits; it asks again when another worker is granted a piece or ends one. The last
worker that is busy is never refused when it asks, so the batch is always finished.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.runtime.dispatch.split import WorkerShare, assumed, finish_s, split

TAIL = 0.06
"""The part of a batch that is not split by prediction."""
FIRST_TAIL = 0.8
"""The same in a step where no speed is known yet."""
PIECE = 0.02
"""The part of a step that one piece of the tail takes."""
LEAST = 16
"""The fewest samples worth a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Who takes what first, how much is left for whoever is free, and how long the step should take.

    `step_s` is None where no speed is known.
    """

    main: dict[str, int]
    tail_samples: int
    step_s: float | None


def plan_step(batch: int, workers: Sequence[WorkerShare], *, tail: float = TAIL) -> StepPlan:
    """Split a batch into main tasks and a tail, together `batch` samples.

    Workers with pinned shares take exactly these and nothing of the tail; the tail is cut from what the others share,
    and there is none where fewer than two share. Where no speed is known most of it is tail, so that even the first
    step goes to those who turn out to be fast.
    """
    whole = split(batch, workers)
    free = [worker for worker in workers if worker.share is None]
    shared = sum(whole[worker.name] for worker in free)
    unknown = all(worker.samples_per_s is None for worker in free)
    part = max(tail, FIRST_TAIL) if unknown and tail > 0 else tail
    tail_samples = int(part * shared) if len(free) > 1 else 0
    main = whole | split(shared - tail_samples, free) if free else whole
    seconds = [worker.seconds(whole[worker.name]) for worker in (workers if unknown else assumed(workers))]
    return StepPlan(
        main=main,
        tail_samples=tail_samples,
        step_s=max((s for s in seconds if s is not None), default=None) if not unknown else None,
    )


def seconds_left(remaining: int, others: Sequence[tuple[WorkerShare, float]]) -> float:
    """Predict when workers finish a tail among themselves, each with the seconds until it is free.

        t = max(max_i busy_i, the least t with sum_i s_i (t - busy_i - piece_i) = remaining)

    Pinned workers take no tail but must be waited for. Infinite where nobody takes the tail.
    """
    takers = [(worker, busy_s) for worker, busy_s in others if worker.share is None]
    if remaining > 0 and not takers:
        return math.inf
    busiest_s = max((busy_s for _, busy_s in others), default=0.0)
    if remaining <= 0:
        return busiest_s
    named = assumed([worker for worker, _ in takers])
    starts_s = [busy_s + _piece_fixed_s(worker) for worker, busy_s in takers]
    rates = [worker.samples_per_s or 1.0 for worker in named]
    return max(busiest_s, finish_s(remaining, starts_s, rates, [remaining] * len(takers)))


def grant(
    worker: WorkerShare,
    remaining: int,
    seconds_left_of_others: float,
    *,
    step_s: float | None,
    piece: float = PIECE,
    least: int = LEAST,
) -> int:
    """Return how many samples of the tail a free worker takes now; 0 means that it waits.

    A piece takes about `piece` of the step, more where its fixed cost would be more than a half of it, and at least
    `least` samples. It is cut shorter, down to `least`, where it would end later than the others finish everything
    without this worker, and it is none where not even that is soon enough. `seconds_left_of_others` is infinite where
    nobody else would take it.
    """
    least = min(least, remaining)
    if remaining <= 0 or (worker.share is not None and seconds_left_of_others < math.inf):
        return 0
    most = remaining if worker.most_samples is None else min(remaining, worker.most_samples)
    if worker.samples_per_s is None or step_s is None:
        return max(1, min(most, max(least, remaining // 16)))
    fixed_s = _piece_fixed_s(worker)
    wanted = math.ceil(worker.samples_per_s * max(piece * step_s, fixed_s))
    in_time = (seconds_left_of_others - fixed_s) * worker.samples_per_s
    if in_time < least:
        return 0
    return max(1, min(most, max(least, min(wanted, math.floor(min(in_time, remaining))))))


def _piece_fixed_s(worker: WorkerShare) -> float:
    """Return what a piece costs whatever its size."""
    return worker.fixed_s if worker.piece_fixed_s is None else worker.piece_fixed_s
