"""The last part of a step, cut small and taken by whoever is free.

Predictions are off by some percent, so most of a batch is split by them and the rest, the tail, evens out what they
missed: a worker that is done with its main task asks for a piece of the tail, and again, until nothing remains.

The driver of a step, whenever a worker is free and something remains:

    others = [(other, seconds until it is free) for each other worker that is busy]
    samples = grant(worker, remaining, others, step_s=plan.step_s)

What becomes of a worker that is granted nothing, and who is asked first, is the driver's to say: the coordinator's task
scheduler has it wait, end its task, or take from a slower one. Whoever asks while nobody else is busy is never refused,
so the batch is always finished. The samples of a worker that has left go back to what remains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dovetail.runtime.dispatch.split import ROUNDING, WorkerShare, assumed, finish_s, split

FIRST_TAIL = 0.8
"""The part of a batch that is tail in a step where no speed is known: the main tasks only find the speeds out."""
MOST_TAIL = 0.3
"""The largest tail otherwise."""
USUAL_ERROR = 0.04
"""How far predictions are off where nobody says: a tail of 6% where pieces cost nothing."""
LEAST = 16
"""The fewest samples worth a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Who takes what first, how much is left for whoever is free, and how long the step should take.

    `step_s` is None where a speed is not known.
    """

    main: dict[str, int]
    tail_samples: int
    step_s: float | None


def plan_step(batch: int, workers: Sequence[WorkerShare], *, tail: float | None = None) -> StepPlan:
    """Split a batch into main tasks and a tail, together `batch` samples.

    `tail` is the part of the batch that is not split by prediction; None takes what `tail_part` makes of the workers'
    errors, and 0 is no tail at all. Where no speed is known, most is tail, so that even the first step goes to those
    who turn out to be fast. A worker whose last task was much slower than its fit takes no more than it surely does
    in time, and the tail gets the rest: a worker that slows down is followed in the next step, and one slow task costs
    a few pieces. (Where pieces are too dear for a tail, only a worker at less than half its speed.)

    Workers with pinned shares take exactly these and nothing of the tail; there is no tail where fewer than two share.
    """
    whole = split(batch, workers)
    step_s = _step_s(whole, workers)
    free = [worker for worker in workers if worker.share is None]
    if len(free) < 2 or tail == 0:
        return StepPlan(main=whole, tail_samples=0, step_s=step_s)
    part = FIRST_TAIL
    if step_s is not None and any(worker.samples_per_s is not None for worker in free):
        part = tail_part(free, step_s=step_s) if tail is None else tail
    shared = sum(whole[worker.name] for worker in free)
    tail_samples = int(part * shared) if part * shared >= LEAST else 0
    main = whole | split(shared - tail_samples, free)
    if step_s is not None:
        for worker in free:
            if _in_doubt(worker, below=1.0 if part > 0 else 0.5):
                main[worker.name] = min(main[worker.name], _surely_done(worker, step_s * (1 - part)))
    return StepPlan(main=main, tail_samples=batch - sum(main.values()), step_s=step_s)


def tail_part(workers: Sequence[WorkerShare], *, step_s: float) -> float:
    """Return the part of a batch that is best left for whoever is free.

    With e, the largest error of the workers' predictions, and c, what a piece costs whatever its size as a part of the
    step (the mean over the samples):

        tail = 1.5 e / (1 + 5 c / e),    none where c >= e

    The form is fitted to simulated steps of workers with speeds 8, 4, 2, 1: e from 0.01 to 0.1, c from 0.001 to 0.07.
    """
    error = max(_error(worker) for worker in workers)
    rates = [worker.samples_per_s or 0.0 for worker in assumed(workers)]
    costs_s = [_piece_fixed_s(worker) for worker in workers]
    cost = sum(rate * cost_s for rate, cost_s in zip(rates, costs_s, strict=True)) / sum(rates) / step_s
    return min(MOST_TAIL, 1.5 * error / (1 + 5 * cost / error)) if cost < error else 0.0


def seconds_left(remaining: int, others: Sequence[tuple[WorkerShare, float]]) -> float:
    """Predict when servers have all of workers that finish a tail among themselves, each free after `busy` seconds.

        t = max(max_i busy_i + push_i, the least t with sum_i s_i (t - busy_i - piece_i - push_i) = remaining)

    Pinned workers take no tail but are waited for. Infinite where nobody would take the tail.
    """
    busiest_s = max((busy_s + worker.push_s for worker, busy_s in others), default=0.0)
    takers = [(worker, busy_s) for worker, busy_s in others if worker.share is None]
    if remaining <= 0:
        return busiest_s
    if not takers:
        return math.inf
    starts_s = [busy_s + _piece_fixed_s(worker) + worker.push_s for worker, busy_s in takers]
    rates = [worker.samples_per_s or 1.0 for worker in assumed([worker for worker, _ in takers])]
    return max(busiest_s, finish_s(remaining, starts_s, rates, [remaining] * len(takers)))


def grant(
    worker: WorkerShare,
    remaining: int,
    others: Sequence[tuple[WorkerShare, float]],
    *,
    step_s: float | None,
    busy_s: float = 0.0,
    least: int = LEAST,
) -> int:
    """Return how many samples of the tail a worker takes that is free after `busy_s`; 0 means that it waits.

    Its share of the tail is what it does until all end, the `others` with it, each with the seconds until it is free:

        share = s (t - busy - piece - push),    t = seconds_left(remaining, others and this worker)

    It takes half of that, so that what comes to light until it asks again can still be evened out; all of it where a
    prediction of so short a time is off by less than another piece would cost. Where its share is less than `least`
    samples it is none. In a step that began with no speed known a piece is at most an eighth of the rest. Where nobody
    else will take any it is never none.
    """
    least = min(least, remaining)
    most = remaining if step_s is not None else max(least, remaining // 8)
    if worker.most_samples is not None:
        most = min(most, worker.most_samples)
    rate = worker.sure_samples_per_s or worker.samples_per_s
    if most <= 0 or (worker.share is not None and any(other.share is None for other, _ in others)):
        return 0
    if rate is None:
        return min(most, least)
    alone = replace(worker, share=None)
    share_s = seconds_left(remaining, [*others, (alone, busy_s)]) - busy_s - _piece_fixed_s(worker) - worker.push_s
    if rate * share_s < least - ROUNDING:
        return 0 if any(other.share is None for other, _ in others) else most
    is_sure = _error(worker) * share_s <= _piece_fixed_s(worker)
    return min(most, max(least, math.floor(rate * share_s * (1.0 if is_sure else 0.5) + ROUNDING)))


def _step_s(parts: dict[str, int], workers: Sequence[WorkerShare]) -> float | None:
    """Predict how long the longest task takes, or return None where no speed is known."""
    if all(worker.samples_per_s is None for worker in workers):
        return None
    return max(worker.seconds(parts[worker.name]) or 0.0 for worker in assumed(workers)) or None


def _in_doubt(worker: WorkerShare, *, below: float) -> bool:
    """Say whether a worker surely does less than the part `below` of its speed."""
    sure, fitted = worker.sure_samples_per_s, worker.samples_per_s
    return sure is not None and fitted is not None and sure < below * fitted


def _surely_done(worker: WorkerShare, until_s: float) -> int:
    """Return how many samples a worker surely does in a time."""
    return max(0, math.floor((worker.sure_samples_per_s or 0.0) * (until_s - worker.fixed_s)))


def _error(worker: WorkerShare) -> float:
    """Return by which part predictions of a worker are off."""
    return USUAL_ERROR if worker.error is None else worker.error


def _piece_fixed_s(worker: WorkerShare) -> float:
    return worker.fixed_s if worker.piece_fixed_s is None else worker.piece_fixed_s


def num_given_back(
    unbegun: Sequence[int], *, left_s: float, sample_s: float, taker_samples_per_s: float, taker_fixed_s: float
) -> int:
    """Return how many micro-batches, from the last one on, another worker should have.

    They have `unbegun` samples each, which take this worker `sample_s` apiece once it has ended what it is at, in
    `left_s`. As many go as the other ends before this worker ends the rest:

        fixed + given / rate <= left + (all - given) sample
    """
    if taker_samples_per_s <= 0 or sample_s <= 0:
        return 0
    rest, given, count = sum(unbegun), 0, 0
    for samples in reversed(unbegun):
        given += samples
        if taker_fixed_s + given / taker_samples_per_s > left_s + (rest - given) * sample_s:
            break
        count += 1
    return count
