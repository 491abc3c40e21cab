"""Iteration seconds of whole plans on real clusters, from profiles and bandwidths alone: nothing is fitted.

Each chain of replicas through the stages is a pipeline (`dovetail.cost.pipeline`); the slowest decides. What goes in:

    computation   the profile of the layers on that GPU type, tensor-parallel degree and micro-batch. A smaller
                  micro-batch never takes longer: c(b) = min over profiled b' >= b of c(b')
    activations   cross a cut once each way, at the rate of one GPU's link between nodes (the slower of the two ends).
                  The stage in front of the last cut goes on computing meanwhile, where a GPU's part fits the buffer
    gradients     are summed around a ring over all replicas of a layer, every GPU of a tensor-parallel group its own
                  part, at the rate of as many links at once (the slowest replica's)
    update        from the profile

A link's rate depends on the size of a message, 10^9 (a x^2 + b x + c) bytes/s with x = log2(megabytes).

The answers, `real` and `red_grads`, are no fields of the plan that the prediction sees.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from cluster_profiles import Sources
from dovetail.cost.pipeline import PipelineStage, compute_alone_seconds, iteration_seconds
from dovetail.errors import DovetailError, did_you_mean

BUFFER_BYTES = 4 * 2**20
"""What NCCL holds of a message between two GPUs until it is received (`NCCL_BUFFSIZE`, its default)."""

Replica = tuple[tuple[tuple[str, int, str], ...], int]
"""The machines of one replica (GPU type, GPUs, zone) and its tensor-parallel degree, as plan files have it."""


class Pipeline(msgspec.Struct, frozen=True):
    """The stages of a pipeline: the layers and the replicas of each."""

    layers_per_stage: tuple[tuple[int, ...], ...]
    tmp_per_stage: tuple[tuple[Replica, ...], ...]


class ClusterPlan(msgspec.Struct, frozen=True):
    """A plan as its file has it, without the answers."""

    pipeline_list: tuple[Pipeline, ...]
    mbs: int
    gbs: int
    N: int | None = None
    model: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """What was measured, where the file says so."""

    real: float | None = None


class Predictor:
    """Predicts one plan of one model; where the plan has one node, its links are those inside a node."""

    def __init__(self, sources: Sources, model: str, plan: ClusterPlan) -> None:
        self.sources, self.model, self.plan = sources, model, plan
        self.num_chains = sum(max(map(len, pipeline.tmp_per_stage)) for pipeline in plan.pipeline_list)
        self.num_micro_batches = math.ceil(plan.gbs / (plan.mbs * self.num_chains))
        self.inside_node = plan.N == 1

    def seconds(self) -> float:
        """Return the predicted seconds of an iteration: the slowest chain's."""
        return max(iteration_seconds(chain, num_micro_batches=self.num_micro_batches) for chain in self.chains())

    def compute_alone(self) -> float:
        """Return `(m - 1) max(stage) + sum(stages)` of the profile as it is, each stage at its slowest replica."""
        return max(
            compute_alone_seconds(
                [
                    max(self.profiled(layers, replica) for replica in replicas)
                    for layers, replicas in zip(pipeline.layers_per_stage, pipeline.tmp_per_stage, strict=True)
                ],
                num_micro_batches=self.num_micro_batches,
            )
            for pipeline in self.plan.pipeline_list
        )

    def profiled(self, layers: tuple[int, ...], replica: Replica) -> float:
        """Return the profiled seconds of a stage on its slowest machine."""
        machines, degree = replica
        return max(
            sum(self.sources.profiled_seconds(self.model, gpu, degree, self.plan.mbs, layer) for layer in layers)
            for gpu, _, _ in machines
        )

    def chains(self) -> Iterator[list[PipelineStage]]:
        """Yield every chain: the i-th replica of each stage; a stage with fewer replicas serves several chains."""
        for pipeline in self.plan.pipeline_list:
            num_chains = max(map(len, pipeline.tmp_per_stage))
            for index in range(num_chains):
                chosen = [replicas[index % len(replicas)] for replicas in pipeline.tmp_per_stage]
                shares = [num_chains / len(replicas) for replicas in pipeline.tmp_per_stage]
                yield [
                    self.stage(layers, chosen[i], following=chosen[i + 1 :], share=shares[i])
                    for i, layers in enumerate(pipeline.layers_per_stage)
                ]

    def stage(
        self, layers: tuple[int, ...], replica: Replica, *, following: list[Replica], share: float
    ) -> PipelineStage:
        """Return one stage of a chain; `following` are the replicas behind it, the one it sends to first."""
        machines, degree = replica
        gradient_bytes = sum(self.sources.parameter_bytes(self.model, degree, layer) for layer in layers)
        times = [
            [self.sources.layer_seconds(self.model, gpu, degree, self.plan.mbs, layer) for layer in layers]
            for gpu, _, _ in machines
        ]
        output_bytes = self.sources.output_bytes(self.model, layers[-1]) * self.plan.mbs
        peers = self.peers(layers[0])
        return PipelineStage(
            compute_s=share * max(sum(compute_s for compute_s, _ in column) for column in times),
            update_s=max(sum(update_s for _, update_s in column) for column in times),
            output_bytes=output_bytes,
            output_bytes_per_s=self.rate([replica, *following[:1]], output_bytes, num_links=1),
            buffered=self.is_buffered(output_bytes, replica, following),
            gradient_bytes=gradient_bytes if self.inside_node else gradient_bytes * degree,
            gradient_bytes_per_s=self.rate(
                peers, gradient_bytes / len(peers), num_links=len(peers) if self.inside_node else None
            ),
            num_replicas=len(peers),
        )

    def is_buffered(self, output_bytes: float, replica: Replica, following: list[Replica]) -> bool:
        """Return whether a stage computes while its output crosses: at the last cut, if each GPU's part fits.

        The last stage has one neighbour: it is back at its receive as soon as it has computed. One in the middle has to
        settle with another neighbour between; measured plans wait there (see the results).
        """
        return len(following) == 1 and output_bytes / min(replica[1], following[0][1]) <= BUFFER_BYTES

    def peers(self, layer: int) -> list[Replica]:
        """Return every replica of a layer, in whatever pipeline."""
        return [
            replica
            for pipeline in self.plan.pipeline_list
            for layers, replicas in zip(pipeline.layers_per_stage, pipeline.tmp_per_stage, strict=True)
            if layer in layers
            for replica in replicas
        ]

    def rate(self, replicas: list[Replica], message_bytes: float, *, num_links: int | None) -> float:
        """Return the slowest rate among replicas, over `num_links` or one link a GPU of the tensor-parallel group."""
        return min(
            self.sources.bytes_per_s(
                gpu, num_links=num_links or degree, message_bytes=message_bytes, inside_node=self.inside_node
            )
            for machines, degree in replicas
            for gpu, _, _ in machines
        )


def model_of(sources: Sources, name: str, plan: ClusterPlan) -> str:
    """Return the model of a plan: what it says, what its file's name says, or the one with as many layers."""
    if not plan.pipeline_list:
        raise DovetailError("pipeline_list is empty", hint="a plan has at least one pipeline")
    if plan.model is not None:
        if plan.model not in sources.models:
            raise DovetailError(f"model `{plan.model}` has no profile", hint=did_you_mean(plan.model, sources.models))
        return plan.model
    named = [model for model in sources.models if model in name]
    if named:
        return max(named, key=len)
    num_layers = sum(map(len, plan.pipeline_list[0].layers_per_stage))
    fitting = [model for model in sources.models if len(next(iter(sources.sizes[model].values()))) == num_layers]
    if len(fitting) != 1:
        raise DovetailError(
            f"which model has {num_layers} layers?", hint=f"add `model`, one of {', '.join(sources.models)}"
        )
    return fitting[0]


def check(sources: Sources, model: str, plan: ClusterPlan) -> None:
    """Refuse a plan that leaves out layers, or that has nothing to train on."""
    if plan.mbs < 1 or plan.gbs < plan.mbs:
        raise DovetailError(f"mbs is {plan.mbs} and gbs {plan.gbs}", hint="a batch has at least one micro-batch")
    num_layers = len(next(iter(sources.sizes[model].values())))
    for pipeline in plan.pipeline_list:
        placed = [layer for layers in pipeline.layers_per_stage for layer in layers]
        if placed != list(range(num_layers)) or not all(pipeline.layers_per_stage):
            raise DovetailError(
                f"layers_per_stage does not list the {num_layers} layers of `{model}` once and in order",
                hint="every stage has at least one layer",
            )
        replicas = pipeline.tmp_per_stage
        if len(replicas) != len(pipeline.layers_per_stage) or not all(replicas):
            raise DovetailError(
                f"tmp_per_stage has {len(replicas)} stages, layers_per_stage {len(pipeline.layers_per_stage)}",
                hint="give every stage its replicas",
            )
        if any(not machines or degree < 1 for stage in replicas for machines, degree in stage):
            raise DovetailError(
                "a replica in tmp_per_stage has no GPU", hint='a replica is [[["GPU type", GPUs, "zone"]], degree]'
            )


def predict_file(sources: Sources, path: Path) -> dict[str, Any]:
    """Return the row of one plan file; one that cannot be predicted says why."""
    row = {"plan": path.stem, "group": path.stem.split("_")[0]}
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=ClusterPlan)
        model = model_of(sources, path.stem, plan)
        check(sources, model, plan)
        predictor = Predictor(sources, model, plan)
        prediction = {"unit": "s", "predicted": predictor.seconds(), "simple": predictor.compute_alone()}
        return row | prediction | {"measured": msgspec.json.decode(path.read_bytes(), type=Answer).real}
    except DovetailError as error:
        return row | {"refused": f"{error} ({error.hint})"}
    except msgspec.MsgspecError as error:
        return row | {"refused": str(error)}


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each plan file of the folder; `simple` is computation alone, from the profile as it is."""
    if arguments.data is None:
        raise DovetailError("DOVETAIL_DATA is not set", hint="set it to the folder of measured data, or give --data")
    folder = Path(arguments.data) / "sailor"
    sources = Sources(folder)
    plans = sorted((arguments.plans or folder / "measured").glob("*.json"))
    if not plans:
        raise DovetailError(f"{arguments.plans or folder / 'measured'} has no plans", hint="give a folder of *.json")
    return [predict_file(sources, path) for path in plans]
