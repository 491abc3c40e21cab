"""How a model is cut into stages: what goes between them, and whose dense parameters lie where."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError


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
    bounds = [(stage.first, stage.last) for stage in blueprint.stages]
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
