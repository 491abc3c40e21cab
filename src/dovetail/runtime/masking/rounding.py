"""What rounding to fixed point does to a promise about single samples.

A sample changes the sum of one worker, by `clip` at most. Rounded, each number that it changes may move by one unit
more: the norm of the change is up to clip + unit sqrt(n), with n numbers in all. So samples are clipped to that much
less, and what servers add up changes by `clip` at most, as it is accounted for.
"""

from __future__ import annotations

import math

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.masking.fixed_point import FixedPoint

FEWEST_PLANNED = 16
"""Workers that a private run is made for, at least: some may join."""


def most_members(blueprint: Blueprint) -> int:
    """Return how many workers may take part in a step of a private run."""
    return max(FEWEST_PLANNED, len(blueprint.run.each_worker()))


def clip_before_rounding(blueprint: Blueprint, clip: float) -> float:
    """Return what samples of a private run are clipped to, so that their sum changes by `clip` once it is rounded."""
    if blueprint.run.privacy.aggregation != "masked":
        return clip
    unit = FixedPoint(blueprint.mask_reach, most_members(blueprint)).unit
    numbers = blueprint.dense_size + sum(table.num_rows * table.width for table in blueprint.tables)
    slack = unit * math.sqrt(numbers)
    if slack > clip / 2:
        raise TrainingError(
            f"sums of {blueprint.batch} samples in 32 bits are rounded to {unit:.2g}, which over {numbers:,} "
            f"parameters takes {slack / clip:.0%} of privacy.clip",
            hint='take a smaller training.batch, or privacy.aggregation = "plain"',
        )
    return clip - slack
