"""Cut a batch so that unlike workers finish together."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from dovetail.runtime.errors import TrainingError

ROUNDING = 1e-9
"""How far shares given as decimal fractions may miss a sum of 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShare:
    """What a split needs of a worker.

    b samples take it `fixed_s + b / samples_per_s`. `samples_per_s = None` is not known yet: the median of the known
    ones stands in, and where none is known all are taken for equal. `most_samples` fit into its memory at once.
    `share` is a fraction of the batch pinned by hand.

    The tail of a step asks more: a piece costs `piece_fixed_s` whatever its size (`fixed_s` where it is None); the
    worker surely does `sure_samples_per_s`, less than its speed where its last task was slow; and its predictions are
    off by the part `error` on average. After its last sample its gradients are under way for `push_s`, which is a part
    of `fixed_s`.
    """

    name: str
    fixed_s: float = 0.0
    samples_per_s: float | None = None
    most_samples: int | None = None
    share: float | None = None
    piece_fixed_s: float | None = None
    sure_samples_per_s: float | None = None
    error: float | None = None
    push_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no worker is."""
        if self.samples_per_s is not None and not 0 < self.samples_per_s < math.inf:
            raise TrainingError(
                f"worker `{self.name}` has samples_per_s = {self.samples_per_s}", hint="give a finite number above zero"
            )
        if not 0 <= self.fixed_s < math.inf or (self.most_samples is not None and self.most_samples < 0):
            raise TrainingError(
                f"worker `{self.name}` has fixed_s = {self.fixed_s}, most_samples = {self.most_samples}",
                hint="give finite numbers from zero on",
            )

    def seconds(self, samples: int) -> float | None:
        """Predict how long a task takes, or None while the speed is not known; no samples take no time."""
        if samples <= 0:
            return 0.0
        return None if self.samples_per_s is None else self.fixed_s + samples / self.samples_per_s


def split(batch: int, workers: Sequence[WorkerShare]) -> dict[str, int]:
    """Return how many samples each worker takes; they sum to `batch`, and a worker may get none.

    The workers finish together at the least t with

        sum_i b_i(t) = batch,    b_i(t) = min(most_i, max(0, s_i (t - f_i)))

    so a worker whose fixed cost alone takes t gets nothing, and what does not fit into one is handed to the others.
    Whole numbers come by the largest remainder, ties by the order given: nobody ends later than t by more than one
    sample. Where the batch does not fit into all workers together, they take it in several rounds: all limits are
    multiplied by the least whole number with which it fits.

    A worker with a pinned share takes that fraction of the batch, in several rounds where it does not fit at once; the
    others split the rest as above. Where every worker is pinned, the shares count in proportion, so that a batch is
    still finished when a worker has left.
    """
    check_shares(workers)
    pinned = _pinned(batch, workers)
    free = [worker for worker in workers if worker.share is None]
    rest = max(batch, 0) - sum(pinned.values())
    shared = pinned | _together(rest, free)
    return {worker.name: shared[worker.name] for worker in workers}


def check_shares(workers: Sequence[WorkerShare]) -> None:
    """Refuse workers among whom no batch can be split."""
    if not workers:
        raise TrainingError("there is no worker to take a batch", hint="start at least one worker")
    shares = {worker.name: worker.share for worker in workers if worker.share is not None}
    free = [worker for worker in workers if worker.share is None]
    listed = ", ".join(f"`{name}` = {share:g}" for name, share in shares.items())
    total = math.fsum(shares.values())
    if any(not share >= 0 for share in shares.values()) or total > 1 + ROUNDING:
        raise TrainingError(
            f"the shares pinned by hand sum to {total:g}: {listed}",
            hint="give each a fraction of the batch from 0 on, at most 1 together",
        )
    if shares and free and total >= 1 - ROUNDING:
        raise TrainingError(
            f"the shares pinned by hand leave nothing for `{free[0].name}`: {listed}",
            hint=f"lower one of them, or pin `{free[0].name}` to 0",
        )
    if not free and total == 0:
        raise TrainingError(f"no worker takes any of the batch: {listed}", hint="raise a pinned share above 0")
    if free and all(worker.most_samples == 0 for worker in free):
        raise TrainingError(
            f"not one sample fits into the memory of {', '.join(f'`{worker.name}`' for worker in free)}",
            hint="raise their memory limits, or add a worker",
        )


def assumed(workers: Sequence[WorkerShare]) -> list[WorkerShare]:
    """Return the workers with a speed for those whose speed is not known."""
    known = [worker.samples_per_s for worker in workers if worker.samples_per_s is not None]
    if not known:
        return [replace(worker, samples_per_s=1.0, fixed_s=0.0) for worker in workers]
    return [replace(worker, samples_per_s=worker.samples_per_s or median(known)) for worker in workers]


def finish_s(batch: float, starts_s: Sequence[float], rates: Sequence[float], limits: Sequence[float]) -> float:
    """Return the least t at which workers that start at f_i have done a batch: sum_i min(most_i, s_i (t - f_i)).

    The sum grows with t along straight lines that bend where a worker starts or is full; t lies between two bends.
    """

    def done(t: float) -> float:
        return sum(_amount(t, *worker) for worker in zip(starts_s, rates, limits, strict=True))

    full_s = [start + limit / rate for start, rate, limit in zip(starts_s, rates, limits, strict=True)]
    bends = sorted({*starts_s, *full_s})
    after = min(bisect_left(bends, batch, key=done), len(bends) - 1)
    if after == 0:
        return bends[0]
    before_s, after_s = bends[after - 1], bends[after]
    at_before, at_after = done(before_s), done(after_s)
    if at_after <= at_before:
        return after_s
    return before_s + (after_s - before_s) * min(1.0, (batch - at_before) / (at_after - at_before))


def _together(batch: int, workers: Sequence[WorkerShare]) -> dict[str, int]:
    """Split a batch among workers without pins."""
    if not workers or batch <= 0:
        return {worker.name: 0 for worker in workers}
    most = [batch if worker.most_samples is None else worker.most_samples for worker in workers]
    rounds = math.ceil(batch / sum(most))
    limits = [min(batch, rounds * limit) for limit in most]
    named = assumed(workers)
    starts_s = [worker.fixed_s for worker in named]
    rates = [worker.samples_per_s or 1.0 for worker in named]
    t = finish_s(batch, starts_s, rates, limits)
    amounts = [_amount(t, *worker) for worker in zip(starts_s, rates, limits, strict=True)]
    return dict(zip([worker.name for worker in workers], _whole(batch, amounts, limits), strict=True))


def _amount(t: float, start_s: float, rate: float, limit: float) -> float:
    """Return what one worker has done at time t."""
    return min(limit, max(0.0, rate * (t - start_s)))


def _pinned(batch: int, workers: Sequence[WorkerShare]) -> dict[str, int]:
    shares = {worker.name: worker.share for worker in workers if worker.share is not None}
    total = math.fsum(shares.values())
    all_pinned = len(shares) == len(workers)
    parts = [share / total if all_pinned else share for share in shares.values()]
    amounts = [batch * part for part in (*parts, *([] if all_pinned else [1 - total]))]
    whole = _whole(max(batch, 0), amounts, [max(batch, 0)] * len(amounts))
    return dict(zip(shares, whole, strict=False))


def _whole(batch: int, amounts: Sequence[float], limits: Sequence[int]) -> list[int]:
    """Round amounts to whole numbers that sum to `batch`: down, and the rest to the largest remainders."""
    whole = [min(int(amount), limit) for amount, limit in zip(amounts, limits, strict=True)]
    by_remainder = sorted(range(len(whole)), key=lambda i: whole[i] - amounts[i])
    while (missing := batch - sum(whole)) > 0:
        for i in [i for i in by_remainder if whole[i] < limits[i]][:missing]:
            whole[i] += 1
    while (surplus := sum(whole) - batch) > 0:  # only where floats end: amounts that sum to more than the batch
        for i in [i for i in reversed(by_remainder) if whole[i] > 0][:surplus]:
            whole[i] -= 1
    return whole
