"""How fast a job goes on w workers that sum their gradients, and what a resize means for its batch and rate.

One step on w workers, the global batch m kept, each sample taking `sample_s` on one worker:

    step(w) = m / w sample_s + all_reduce(w) + fixed_s            f(w) = 1 / step(w) steps a second

With a ring this is the four-term form  f(w) = 1 / (t0 m/w + t1 (w - 1) + t2 (w - 1) n/w + t3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dovetail.cost.collective import Algorithm, all_reduce_seconds
from dovetail.errors import DovetailError

RateRule = Literal["linear", "square-root", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedModel:
    """What decides a job's speed; `inside` and `between` nodes the wires differ."""

    batch: int
    sample_s: float
    payload_bytes: float
    inside_byte_s: float
    between_byte_s: float
    latency_s: float = 5e-5
    reduce_byte_s: float = 0.0
    fixed_s: float = 0.0
    node_workers: int = 4
    algorithm: Algorithm = "best"

    def step_seconds(self, num_workers: int) -> float:
        """Return what one step of the global batch takes; a worker's share is rounded up to whole samples."""
        compute_s = math.ceil(self.batch / num_workers) * self.sample_s
        byte_s = self.inside_byte_s if num_workers <= self.node_workers else self.between_byte_s
        sum_s = all_reduce_seconds(
            self.payload_bytes,
            num_workers=num_workers,
            byte_s=byte_s,
            latency_s=self.latency_s,
            reduce_byte_s=self.reduce_byte_s,
            algorithm=self.algorithm,
        )
        return compute_s + sum_s + self.fixed_s

    def steps_per_s(self, num_workers: int) -> float:
        """Return f(w): steps a second on `num_workers`."""
        return 1.0 / self.step_seconds(num_workers)

    def table(self, workers: tuple[int, ...]) -> dict[str, float]:
        """Return a speed table as workload files have it, in steps a second."""
        return {str(count): self.steps_per_s(count) for count in workers}


def four_term_steps_per_s(
    num_workers: int, *, batch: float, size: float, t0: float, t1: float, t2: float, t3: float
) -> float:
    """Return f(w) = 1 / (t0 m/w + t1 (w - 1) + t2 (w - 1) n/w + t3), the form that is fitted to measured speeds."""
    hops = num_workers - 1
    return 1.0 / (t0 * batch / num_workers + t1 * hops + t2 * hops * size / num_workers + t3)


def scaled_learning_rate(rate: float, *, batch_before: int, batch_after: int, rule: RateRule = "linear") -> float:
    """Return the learning rate after the global batch has changed.

    `linear` multiplies by the ratio r of the batches, `square-root` by its root, `none` keeps the rate. With the global
    batch kept, r = 1 and every rule returns the rate itself, whatever the workers.
    """
    ratio = batch_after / batch_before
    factor = {"linear": ratio, "square-root": math.sqrt(ratio), "none": 1.0}[rule]
    return rate * factor


def ramped_learning_rate(rate_before: float, rate_after: float, *, step: int, ramp_steps: int) -> float:
    """Return the rate `step` steps after a resize: a straight line from the old rate to the new over `ramp_steps`."""
    if ramp_steps <= 0 or step >= ramp_steps:
        return rate_after
    return rate_before + (rate_after - rate_before) * step / ramp_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """How a global batch is kept on w workers: worker i sums `per_worker[i]` samples over `passes` passes."""

    per_worker: tuple[int, ...]
    passes: int


def keep_global_batch(global_batch: int, *, num_workers: int, max_worker_batch: int | None = None) -> Accumulation:
    """Return each worker's share of a global batch, and the passes it is accumulated over.

    The shares differ by one sample at most and add up to the batch exactly. `max_worker_batch` is what fits a worker's
    memory in one pass; the least number of passes that respects it is used by all workers.
    """
    if not 1 <= num_workers <= global_batch:
        raise DovetailError(
            f"a batch of {global_batch} cannot be shared by {num_workers} workers",
            hint="use at least one worker and at most one a sample",
        )
    if max_worker_batch is not None and max_worker_batch < 1:
        raise DovetailError(f"max_worker_batch is {max_worker_batch}", hint="a worker must hold at least one sample")
    share, left_over = divmod(global_batch, num_workers)
    per_worker = tuple(share + (position < left_over) for position in range(num_workers))
    passes = 1 if max_worker_batch is None else math.ceil(per_worker[0] / max_worker_batch)
    return Accumulation(per_worker=per_worker, passes=passes)
