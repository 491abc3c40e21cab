"""What one iteration of a pipeline takes, as formulas: streaming, or filled and drained with every batch.

A batch goes through stages i = 1..s as m micro-batches, each forward and then backward (one forward, one backward once
the pipeline is full). Stage i computes for c_i seconds a micro-batch; its output crosses to the next stage in p_i, and
as many bytes of gradient come back. Neighbours exchange once a micro-batch, the gradient first: the next activation
leaves when the last gradient has come. So the stage behind a cut waits for both, whatever the link:

    cycle_i = c_i + 2 p_(i-1) + 2 h_i p_i                             p_0 = p_s = 0

The stage in front of the cut need not: h_i = 0 where the ends of the link hold a whole message (`buffered`), which
then crosses while that stage computes; h_i = 1 where both ends must take part all the while (a rendezvous).

The slowest stage sets the pace, and the first micro-batch has to pass through all of them:

    pipeline = (m - 1) max_i cycle_i  +  sum_i c_i  +  2 sum_i p_i

Replicas make chains, each with its own times: the slowest chain decides, not the slowest replica of every stage. Then
the replicas of each stage sum their gradients around a ring and update, all stages at once:

    iteration = pipeline + max_i (ring_i + update_i)

Limits: with free links and nothing to sum it is `(m - 1) max c + sum c`; with one stage, `m c` and the ring; with one
micro-batch, every stage and every cut once each way; two stages over a buffered link, `max(c_1, c_2 + 2 p)` a
micro-batch, and `max(c_1, c_2) + 2 p` over any other.
"""

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


def sync_step_seconds(
    seconds: Sequence[float],
    workers: Sequence[int],
    *,
    micro_batches: int,
    work_s: float = 0.0,
    cores: float = math.inf,
) -> float:
    """Return what a step takes whose batch comes in so many micro-batches.

    Every stage, and the servers, take `seconds` for the batch with all of their `workers`. `work_s` is the processor
    time of all that run on `cores` which they share.

    A plan's speed is that of its slowest stage: while one batch is in the last stage, the next is in those before. In
    `sync` the next batch has to wait until the step is applied. Its N micro-batches, of all workers of the first stage,
    meet the workers of every stage, and the servers; whoever is free takes the next. Stage i, with k_i workers, takes
    t_i for all N, so one micro-batch spends k_i t_i / N there:

        step = sum_i k_i t_i / N  +  max_i (t_i - k_i t_i / N)

    All of a stage's work has to be done there, one micro-batch has to get to it first, and the last one on from it:
    the stage where that takes longest sets the pace, most often the slowest. Where processes share
    cores, all of what they compute has to fit there too: step >= (sum of all work) / cores.
    """
    passing = [count * each_s / max(micro_batches, count) for each_s, count in zip(seconds, workers, strict=True)]
    paced_s = max(each_s - pass_s for each_s, pass_s in zip(seconds, passing, strict=True))
    return max(sum(passing) + paced_s, work_s / cores)
