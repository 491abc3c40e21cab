"""How fast a job goes on w workers that sum their gradients.

One step on w workers, the global batch m kept, each sample taking `sample_s` on one worker:

    step(w) = m / w sample_s + all_reduce(w) + fixed_s            f(w) = 1 / step(w) steps a second

With a ring this is the four-term form  f(w) = 1 / (t0 m/w + t1 (w - 1) + t2 (w - 1) n/w + t3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dovetail.cost.collective import Algorithm, all_reduce_seconds


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
