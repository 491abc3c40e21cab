"""What a step takes where its stages wait for one another: a pipeline that fills and drains with every batch.

A plan's speed is that of its slowest stage: while one batch is in the last stage, the next is in those before. In
`sync` the next batch has to wait until the step is applied. Its M micro-batches follow each other through the stages,
servers among them, and stage i takes t_i for all of them:

    step = sum_i t_i / M + (1 - 1 / M) max_i t_i

The first micro-batch goes through all stages, the others follow at the pace of the slowest. Where processes share
cores, all of what they compute has to fit there too: step >= (sum of all work) / cores.
"""

from __future__ import annotations

from collections.abc import Sequence


def sync_step_seconds(stage_seconds: Sequence[float], *, micro_batches: int) -> float:
    """Return what a step takes whose stages take so long for a batch, in so many micro-batches."""
    slowest = max(stage_seconds)
    return sum(stage_seconds) / micro_batches + (1 - 1 / micro_batches) * slowest


def shared_step_seconds(
    stage_seconds: Sequence[float], work_seconds: Sequence[float], *, micro_batches: int, cores: float
) -> float:
    """Return what a step takes on a machine whose cores all processes share; `work_seconds` is what each kind needs."""
    return max(sync_step_seconds(stage_seconds, micro_batches=micro_batches), sum(work_seconds) / cores)
