"""What one unit of a stage holds in memory.

    fixed  = sum over dense layers of weights + gradients (as large) + optimizer state      every unit has its own
    shared = sum over embeddings of rows + optimizer state + index, and over all layers of activations
    memory(k) = fixed + shared / k

The rows of an embedding are spread over the units of its stage, and a batch is, too. An embedding of which each unit
keeps `rows_bytes` of rows has these on every unit instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dovetail.cost.row_budget import settled
from dovetail.spec import Layer, Problem, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """The bytes that one unit of a stage holds, by what they are."""

    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    index_bytes: float
    activation_bytes: float

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return (
            self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes + self.index_bytes + self.activation_bytes
        )


def is_spread(layer: Layer) -> bool:
    """Say whether a layer's parameters are spread over the units of its stage, as the rows of an embedding are."""
    return layer.kind == "embedding"


def activation_bytes(layer: Layer) -> float:
    """Return what a layer keeps of a batch until its backward pass; at least its output."""
    return layer.output_bytes if layer.activation_bytes is None else layer.activation_bytes


def stage_memory(layers: Iterable[Layer], *, units: int, resource: str | None = None) -> StageMemory:
    """Return what one of `units` units holds of a stage with these layers; on some types, fewer rows."""
    parameters = gradients = optimizer = index = activations = 0.0
    for layer in layers:
        activations += activation_bytes(layer) / units
        if resource is not None and (held := layer.on[resource].rows_bytes) is not None:
            parameters += held
            continue
        share = 1 / units if is_spread(layer) else 1.0
        parameters += layer.weight_bytes * share
        gradients += 0.0 if is_spread(layer) else layer.weight_bytes
        optimizer += layer.optimizer_bytes * share
        index += layer.index_bytes * share
    return StageMemory(
        parameter_bytes=parameters,
        gradient_bytes=gradients,
        optimizer_bytes=optimizer,
        index_bytes=index,
        activation_bytes=activations,
    )


def plan_memory(problem: Problem, stages: Sequence[Stage]) -> tuple[StageMemory, ...]:
    """Return what one unit of each stage holds."""
    layers = settled(problem, stages).layers
    return tuple(
        stage_memory(layers[stage.first_layer : stage.last_layer + 1], units=stage.units, resource=stage.resource)
        for stage in stages
    )
