"""What one iteration of a pipeline takes, as formulas: streaming, or filled and drained with every batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.cost.collective import ring_all_reduce_seconds
from dovetail.errors import DovetailError


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStage:
    """One stage of a pipeline: what it computes, what it passes on, and what its replicas have to agree on.

    `compute_s` is forward and backward of one micro-batch; `output_bytes` is what one micro-batch hands to the next
    stage (the last stage's is not sent), and `buffered` whether it crosses while this stage goes on computing;
    `gradient_bytes` is summed once an iteration over `num_replicas`.
    """

    compute_s: float
    output_bytes: float = 0.0
    output_bytes_per_s: float = math.inf
    buffered: bool = False
    gradient_bytes: float = 0.0
    gradient_bytes_per_s: float = math.inf
    num_replicas: int = 1
    update_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no stage takes, holds or has."""
        for name in ("compute_s", "output_bytes", "gradient_bytes", "update_s"):
            if getattr(self, name) < 0:
                raise DovetailError(f"a stage has {name} = {getattr(self, name)}", hint="set it to zero or more")
        for name in ("output_bytes_per_s", "gradient_bytes_per_s", "num_replicas"):
            if getattr(self, name) <= 0:
                raise DovetailError(f"a stage has {name} = {getattr(self, name)}", hint="set it above zero")

    @property
    def message_s(self) -> float:
        """What one micro-batch takes to cross to the next stage, one way."""
        return self.output_bytes / self.output_bytes_per_s

    @property
    def ring_s(self) -> float:
        """What the replicas take to sum their gradients."""
        byte_s = 1 / self.gradient_bytes_per_s
        return ring_all_reduce_seconds(self.gradient_bytes, num_workers=self.num_replicas, byte_s=byte_s)


def iteration_seconds(stages: Sequence[PipelineStage], *, num_micro_batches: int) -> float:
    """Return the seconds of one iteration: the pipeline, then the slowest stage's ring and update."""
    fill_s = sum(stage.compute_s for stage in stages) + 2 * sum(stage.message_s for stage in stages[:-1])
    pace_s = max(cycle_seconds(stages, num_micro_batches=num_micro_batches))
    return (num_micro_batches - 1) * pace_s + fill_s + max(stage.ring_s + stage.update_s for stage in stages)


def cycle_seconds(stages: Sequence[PipelineStage], *, num_micro_batches: int = 1) -> list[float]:
    """Return how long one micro-batch keeps each stage: its computation, and the cuts that it waits for, each way."""
    if not stages or num_micro_batches < 1:
        raise DovetailError(
            f"a pipeline of {len(stages)} stages cannot take {num_micro_batches} micro-batches",
            hint="use at least one of both",
        )
    received = [0.0, *(stage.message_s for stage in stages[:-1])]
    sent = [*(0.0 if stage.buffered else stage.message_s for stage in stages[:-1]), 0.0]
    return [stage.compute_s + 2 * (received[i] + sent[i]) for i, stage in enumerate(stages)]


def compute_alone_seconds(stage_s: Sequence[float], *, num_micro_batches: int) -> float:
    """Return `(m - 1) max(stage) + sum(stages)`: what an iteration would take if communication were free."""
    stages = [PipelineStage(compute_s=seconds) for seconds in stage_s]
    return iteration_seconds(stages, num_micro_batches=num_micro_batches)


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
