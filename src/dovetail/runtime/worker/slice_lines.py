"""Slices of dense parameters from servers, and of their gradients to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dovetail.runtime.dense.slices import DenseSlice
from dovetail.runtime.messages import Assign, Pull, Pulled, Push, Pushed
from dovetail.runtime.worker.lines import Lines
from dovetail.runtime.worker.push_part import after_slices

Floats = NDArray[np.float32]


def pull_slices(
    lines: Lines, assign: Assign, pieces: Sequence[DenseSlice], vector: Floats, wanted: Callable[[], bool]
) -> None:
    """Write slices of dense parameters, one a server, as they are before the step of a task."""
    pull = Pull(generation=assign.generation, version=assign.step, tables=(), dense=True)
    asked = [
        (each.server, replace(pull, first=each.begins, last=each.begins + each.last - each.first), ())
        for each in pieces
    ]
    for each, letter in zip(pieces, lines.ask_each(asked, Pulled, wanted), strict=True):
        vector[each.first : each.last] = letter.arrays[0]


def push_slice(
    lines: Lines,
    message: Push,
    server: int,
    numbers: Floats,
    wanted: Callable[[], bool],
    slices: Mapping[int, int],
) -> None:
    """Send a slice of dense gradients to its server, after `slices` that went before, and wait until it has it."""
    lines.ask_each([(server, after_slices(message, slices.get(server, 0)), [numbers])], Pushed, wanted)
