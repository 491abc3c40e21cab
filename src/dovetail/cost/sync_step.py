"""What a step takes where its stages wait for one another: a pipeline that fills and drains with every batch.

A plan's speed is that of its slowest stage: while one batch is in the last stage, the next is in those before. In
`sync` the next batch has to wait until the step is applied. Its N micro-batches, of all workers of the first stage,
meet the workers of every stage, and the servers; whoever is free takes the next. Stage i, with k_i workers, takes t_i
for all N, so one micro-batch spends k_i t_i / N there:

    step = sum_i k_i t_i / N  +  t_s - k_s t_s / N          s is the slowest stage

The first micro-batch goes through all stages, the others follow at the pace of the slowest. Where processes share
cores, all of what they compute has to fit there too: step >= (sum of all work) / cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShare:
    """A stage, or the servers: what all workers together take for a batch, and how many there are."""

    seconds: float
    workers: int
    work_s: float = 0.0
    """Processor time of a batch, where the stage runs on cores that others share."""


def sync_step_seconds(stages: Sequence[StageShare], *, micro_batches: int, cores: float | None = None) -> float:
    """Return what a step takes whose batch comes in so many micro-batches; `cores` are those that all stages share."""
    passing = [stage.workers * stage.seconds / max(micro_batches, stage.workers) for stage in stages]
    slowest = max(range(len(stages)), key=lambda position: stages[position].seconds)
    step_s = sum(passing) + stages[slowest].seconds - passing[slowest]
    return step_s if cores is None else max(step_s, sum(stage.work_s for stage in stages) / cores)
