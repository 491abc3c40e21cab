"""Dense parameters with settings of their own: one optimizer for each run of parameters that have the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from dovetail.runtime.blueprint import Blueprint, DenseEntry
from dovetail.runtime.dense.optimizer import DenseOptimizer, State, Vector, make_dense_optimizer
from dovetail.runtime.errors import TrainingError
from dovetail.spec.run_optimizer import RunGroup

PREFIX = "layers."


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbours in the vector of dense parameters that are updated alike."""

    first: int
    last: int
    optimizer: DenseOptimizer


class GroupedOptimizer:
    """Steps each part of a vector by its own optimizer; all are of one kind, so their state is alike."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Keep the parts, which lie one after the other from 0 on."""
        self.parts = parts
        self.name = parts[0].optimizer.name

    def state_vectors(self) -> tuple[str, ...]:
        """Return the names of the vectors of state, each as long as the parameters."""
        return self.parts[0].optimizer.state_vectors()

    def first_state(self, size: int) -> State:
        """Return the state before the first step."""
        states = [part.optimizer.first_state(part.last - part.first) for part in self.parts]
        return {name: np.concatenate([state[name] for state in states]) for name in self.state_vectors()}

    def step(
        self,
        values: Vector,
        gradients: Vector,
        state: State,
        *,
        step_number: int,
        scale: float,
        factor: float = 1.0,
        clip_value: float | None = None,
    ) -> None:
        """Change `values` and `state` in place; see `DenseOptimizer.step`."""
        for part in self.parts:
            here = slice(part.first, part.last)
            part.optimizer.step(
                values[here],
                gradients[here],
                {name: vector[here] for name, vector in state.items()},
                step_number=step_number,
                scale=scale,
                factor=factor,
                clip_value=clip_value,
            )


def optimizer_of(blueprint: Blueprint, part: slice | None = None) -> DenseOptimizer | GroupedOptimizer:
    """Return what updates a run's dense parameters, or a part of their vector."""
    settings = dict(blueprint.optimizer)
    whole = make_dense_optimizer(str(settings.pop("name")), **settings)  # type: ignore[arg-type]
    groups = blueprint.run.optimizer.groups
    if not groups:
        return whole
    first, last = (part.start, part.stop) if part is not None else (0, blueprint.dense_size)
    parts: list[Part] = []
    for entry in blueprint.dense:
        begin, end = max(first, entry.offset), min(last, entry.offset + entry.size)
        if begin >= end:
            continue
        optimizer = _optimizer_for(entry, groups, blueprint, whole)
        if parts and parts[-1].optimizer == optimizer:
            parts[-1] = Part(parts[-1].first, end - first, optimizer)
        else:
            parts.append(Part(begin - first, end - first, optimizer))
    return GroupedOptimizer(parts) if parts else whole


def check_groups(blueprint: Blueprint) -> None:
    """Refuse a pattern that no parameter has, and settings that the optimizer does not."""
    for group in blueprint.run.optimizer.groups:
        if not any(_fits(entry, group) for entry in blueprint.dense):
            names = ", ".join(entry.name.removeprefix(PREFIX) for entry in blueprint.dense[:6])
            raise TrainingError(
                f"optimizer.groups: no dense parameter is called `{group.pattern}`", hint=f"there are {names}, ..."
            )
    optimizer_of(blueprint)


def _optimizer_for(
    entry: DenseEntry, groups: Sequence[RunGroup], blueprint: Blueprint, whole: DenseOptimizer
) -> DenseOptimizer:
    """Return what updates a parameter: of the first group whose pattern fits its name."""
    group = next((group for group in groups if _fits(entry, group)), None)
    if group is None:
        return whole
    settings: dict[str, float | str] = {**blueprint.optimizer, **group.settings}
    if group.learning_rate is not None:
        settings["learning_rate"] = group.learning_rate
    return make_dense_optimizer(str(settings.pop("name")), **settings)  # type: ignore[arg-type]


def _fits(entry: DenseEntry, group: RunGroup) -> bool:
    """Say whether a parameter belongs to a group."""
    return fnmatchcase(entry.name, group.pattern) or fnmatchcase(entry.name.removeprefix(PREFIX), group.pattern)
