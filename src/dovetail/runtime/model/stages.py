"""How a model is cut into stages: what goes between them, and whose dense parameters lie where."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.model.parameters import dense_parameters, norms_of
from dovetail.spec.run import Run


@dataclass(frozen=True, slots=True)
class Cut:
    """One stage, and what goes in and out of it."""

    number: int
    first: int
    last: int
    fields: tuple[str, ...]
    """Of the batch, which its layers read."""
    inputs: dict[int, tuple[str, ...]]
    """By earlier stage: the outputs of its blocks that this one reads."""
    outputs: dict[int, tuple[str, ...]]
    """By later stage: the outputs of this one that it reads."""
    dense: slice
    """Its dense parameters in the vector of all."""
    names: frozenset[str]
    """What they are called."""

    @property
    def senders(self) -> frozenset[int]:
        """The stages that it waits for: the first is one, which is told of loss, scores and gradients of rows."""
        return frozenset(self.inputs) | (frozenset({0}) if self.number else frozenset())


def cuts_of(graph: LayerGraph, blueprint: Blueprint) -> list[Cut]:
    """Return the stages of a run."""
    bounds = [(stage.first_layer, stage.last_layer) for stage in blueprint.run.stages]
    stage_of = {
        block.name: number for number, (first, last) in enumerate(bounds) for block in graph.blocks[first : last + 1]
    }
    cuts = []
    for number, (first, last) in enumerate(bounds):
        inputs: dict[int, tuple[str, ...]] = {}
        for name in graph.inputs_of(first, last):
            inputs[stage_of[name]] = (*inputs.get(stage_of[name], ()), name)
        names = frozenset(name for name, _ in graph.parameters_of(first, last))
        cuts.append(
            Cut(number, first, last, graph.reads_of(first, last), inputs, {}, _dense_of(blueprint, names), names)
        )
    for cut in cuts:
        for sender, outputs in cut.inputs.items():
            cuts[sender].outputs[cut.number] = outputs
    return cuts


def _dense_of(blueprint: Blueprint, names: frozenset[str]) -> slice:
    """Return where the dense parameters with these names lie, which is in one piece."""
    mine = [entry for entry in blueprint.dense if entry.name in names]
    if not mine:
        return slice(0, 0)
    found = slice(mine[0].offset, mine[-1].offset + mine[-1].size)
    if sum(entry.size for entry in mine) != found.stop - found.start:
        raise TrainingError(
            f"the parameters of the stage with {mine[0].name} do not lie side by side",
            hint="list the layers of the model in the order in which they are computed",
        )
    return found


def check_cut(graph: LayerGraph, run: Run) -> None:
    """Refuse batch norms, lower precision, and layers in two stages that share a parameter."""
    if norms_of(graph):
        raise TrainingError(
            "the model normalises by batches, and its stages would each see another part of one",
            hint="train it in one stage, or use layer norms",
        )
    for name, parameter in dense_parameters(graph):
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise TrainingError(
                f"parameter `{name}` is {kind}, and the model is cut into stages",
                hint='train it in one stage, or keep float32 and set precision = "bfloat16" of workers',
            )
    if any(worker.precision == "float16" for worker in run.workers):
        raise TrainingError(
            "a worker computes in float16, and the model is cut into stages",
            hint='set its precision = "bfloat16": losses are scaled for float16 in one stage only',
        )
    if run.training.compile:
        raise TrainingError(
            "training.compile is true, and the model is cut into stages",
            hint="leave it away, or train the model in one stage",
        )
    stage_of = [
        number for number, stage in enumerate(run.stages) for _ in range(stage.first_layer, stage.last_layer + 1)
    ]
    for name, one, other in graph.ties():
        if stage_of[graph.position(one)] != stage_of[graph.position(other)]:
            raise TrainingError(
                f"layers `{one}` and `{other}` share the parameter `{name}`, and lie in stages "
                f"{stage_of[graph.position(one)]} and {stage_of[graph.position(other)]}",
                hint="cut the model so that one stage holds both",
            )
