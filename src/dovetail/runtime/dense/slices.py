"""Slices of the dense parameters that a server keeps: gradients go to it one by one, as the backward pass has them.

Where it pays: in `sync`, through servers, where each has at least two slices. With fewer bits nobody knows what is
kept back before all gradients are there, and later stages send theirs at the end, so there they go in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dovetail.runtime.blueprint import Blueprint

NUMBER_BYTES = 4


class DenseSlice(NamedTuple):
    """Numbers `first` up to but not including `last` of the vector of all dense parameters, all of one server."""

    server: int
    first: int
    last: int
    begins: int
    """Where it begins in that server's part."""


def is_sliced(blueprint: Blueprint) -> bool:
    """Say whether dense gradients may come in slices."""
    run, training = blueprint.run, blueprint.run.training
    may_be = training.mode == "sync" and training.dense == "ps" and training.slice_bytes > 0
    if not may_be or run.compression.is_wanted or blueprint.stages:
        return False
    return blueprint.dense_size // blueprint.num_servers * NUMBER_BYTES >= 2 * training.slice_bytes


def slices_of(blueprint: Blueprint) -> Sequence[DenseSlice]:
    """Return the slices of all servers, in the order of the vector; none where gradients go in one piece."""
    if not is_sliced(blueprint):
        return ()
    size, found = max(1, blueprint.run.training.slice_bytes // NUMBER_BYTES), []
    for server in range(blueprint.num_servers):
        part = blueprint.dense_slice(server)
        found += [
            DenseSlice(server, first, min(first + size, part.stop), first - part.start)
            for first in range(part.start, part.stop, size)
        ]
    return found
