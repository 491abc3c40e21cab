"""Learning-rate schedules by name: the factor of the learning rate at each step, from 0."""

from __future__ import annotations

import math
from collections.abc import Callable

from dovetail.errors import did_you_mean
from dovetail.models.errors import ModelError

Schedule = Callable[[int], float]


def constant() -> Schedule:
    """Return 1 for ever."""
    return lambda _: 1.0


def warmup(*, warmup_steps: int = 1000) -> Schedule:
    """Rise in equal steps to 1, then stay."""
    return lambda step: min(1.0, (step + 1) / max(1, warmup_steps))


def inverse_sqrt(*, warmup_steps: int = 1000) -> Schedule:
    """Rise to 1, then fall as 1 / sqrt(step)."""
    peak = max(1, warmup_steps)
    return lambda step: min((step + 1) / peak, math.sqrt(peak / (step + 1)))


def linear(*, total_steps: int, warmup_steps: int = 0, floor: float = 0.0) -> Schedule:
    """Rise to 1, then fall in a straight line to `floor` at the last step."""
    return lambda step: _decay(step, total_steps, warmup_steps, floor, lambda done: 1.0 - done)


def cosine(*, total_steps: int, warmup_steps: int = 0, floor: float = 0.0) -> Schedule:
    """Rise to 1, then fall along half a cosine to `floor` at the last step."""
    return lambda step: _decay(step, total_steps, warmup_steps, floor, lambda done: (1 + math.cos(math.pi * done)) / 2)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "warmup": warmup,
    "inverse-sqrt": inverse_sqrt,
    "linear": linear,
    "cosine": cosine,
}


def make_schedule(name: str, **options: float) -> Schedule:
    """Return the schedule of that name; its options are `warmup_steps`, `total_steps` and `floor`."""
    if name not in SCHEDULES:
        raise ModelError(f"there is no schedule `{name}`", hint=did_you_mean(name, SCHEDULES))
    try:
        return SCHEDULES[name](**options)
    except TypeError as problem:
        raise ModelError(
            f"schedule `{name}`: {str(problem).split('() ')[-1]}",
            hint="`linear` and `cosine` need total_steps; warmup_steps and floor are optional",
        ) from None


def _decay(step: int, total_steps: int, warmup_steps: int, floor: float, shape: Callable[[float], float]) -> float:
    """Return the factor of a schedule that rises, then falls from 1 to `floor` along `shape`."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    done = min(1.0, (step - warmup_steps) / max(1, total_steps - 1 - warmup_steps))
    return floor + (1.0 - floor) * shape(done)
