"""A problem as arrays, laid out for the compiled kernels."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dovetail.spec import Layer, Problem

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FREE_CUT = 0
"""The class of cuts that cost nothing: the two ends of the model, and every cut where no links are given."""
NO_CUT = -1
"""The class of two types that cannot be neighbours."""
BLOCK = 16
"""How many stage ends kernels look at together."""


class ProblemArrays(NamedTuple):
    """Layers l = 0..L-1 and types t = 0..T-1. Sums run over the layers before l, so a stage is one difference.

    A cut between two types belongs to a class: all cuts of a class cost the same seconds and USD a byte and the same
    latency, so the kernels look at classes, of which there are few, instead of pairs of types.
    """

    batch: float
    compute_serial_s: Floats  # [T, L + 1] sums of c (1 - a)
    compute_shared_s: Floats  # [T, L + 1] sums of c a
    comm_serial_s: Floats  # [T, L + 1] sums of d (1 - b)
    comm_shared_s: Floats  # [T, L + 1] sums of d b
    end_of_run: Ints  # [T, L] how far a stage that starts at l can reach: the first layer that cannot run on t
    memory_fixed_bytes: Floats  # [T, L + 1] sums of what every unit of a stage holds
    memory_shared_bytes: Floats  # [T, L + 1] sums of what the units of a stage hold together
    memory_bytes: Floats  # [T] what a unit has room for; infinity where it is not said
    price_per_hour: Floats  # [T]
    limit: Ints  # [T] units to be had
    crossing_bytes: Floats  # [L] bytes over the cut behind layer l
    cut_class: Ints  # [T, T] the class of the cut between two types, or NO_CUT
    class_s_per_byte: Floats  # [C] seconds a byte on links that units have each, both ways added up
    class_site_s_per_byte: Floats  # [C] seconds a byte on links between sites, which units share, both ways added up
    class_latency_s: Floats  # [C] latency, both ways added up
    class_usd_per_byte: Floats  # [C] what a byte pays for leaving a site, both ways added up
    classes_of: Ints  # [T, N] the classes of the cuts a type can have inside the model, each at its slot, then NO_CUT
    slot_of: Ints  # [T, T] at which slot of a type the class of its cut with another is, or NO_CUT
    neighbours: Ints  # [T, T] the types that can be next to a type, then NO_CUT
    least_cut: Floats  # [T, 3] the least of s_per_byte, of site_s_per_byte and of latency_s over a type's classes
    most_cut: Floats  # [T, 3] the most of each
    class_cut: Floats  # [C, 3] the three of each class
    through_s: (
        Floats  # [T, 6, L in blocks] the four sums up to and with layer l, then comm's two with the least cut behind l
    )
    free_cuts: bool  # whether there is only FREE_CUT, between any two unlike types

    @property
    def num_layers(self) -> int:
        """L, the number of layers."""
        return len(self.crossing_bytes)

    @property
    def num_types(self) -> int:
        """T, the number of resource types."""
        return len(self.price_per_hour)

    @property
    def has_egress(self) -> bool:
        """Whether some cut pays for its bytes."""
        return bool((self.class_usd_per_byte > 0).any())

    def without_egress(self) -> ProblemArrays:
        """Return the same with bytes that leave a site for nothing: what units alone cost."""
        return self._replace(class_usd_per_byte=np.zeros_like(self.class_usd_per_byte))


def as_arrays(problem: Problem, *, split_stages: bool = False) -> ProblemArrays:
    """Return the arrays of a problem; with `split_stages` a type may be its own neighbour."""
    num_layers, num_types = len(problem.layers), len(problem.resources)
    none = (0.0, 0.0, 0.0, 0.0)
    times = [
        [
            none
            if (on := layer.on.get(resource.name)) is None
            else (on.compute_s, on.compute_parallel, on.comm_s, on.comm_parallel)
            for layer in problem.layers
        ]
        for resource in problem.resources
    ]
    compute_s, compute_parallel, comm_s, comm_parallel = (
        np.array(times).reshape(num_types, num_layers, 4).transpose(2, 0, 1)
    )
    per_layer = np.array(
        [
            compute_s * (1 - compute_parallel),
            compute_s * compute_parallel,
            comm_s * (1 - comm_parallel),
            comm_s * comm_parallel,
        ]
    )
    end_of_run = np.zeros((num_types, num_layers), dtype=np.int64)
    for t, resource in enumerate(problem.resources):
        end = num_layers
        for position in range(num_layers - 1, -1, -1):
            if resource.name not in problem.layers[position].on:
                end = position
            end_of_run[t, position] = end
    sums = np.zeros((4, num_types, num_layers + 1))
    np.cumsum(per_layer, axis=2, out=sums[:, :, 1:])
    crossing = np.zeros(num_layers)
    for producer, consumer in problem.edges():
        crossing[producer:consumer] += problem.layers[producer].output_bytes
    memory = np.array(
        [[_memory(layer, resource.name) for layer in problem.layers] for resource in problem.resources]
    ).reshape(num_types, num_layers, 2)
    cut_class, costs = _cut_classes(problem, split_stages=split_stages)
    classes_of = _classes_of(cut_class)
    class_cut = np.array([(cost.s_per_byte, cost.site_s_per_byte, cost.latency_s) for cost in costs])
    least_cut, most_cut = _cut_range(classes_of, class_cut)
    return ProblemArrays(
        batch=float(problem.training.batch),
        compute_serial_s=sums[0],
        compute_shared_s=sums[1],
        comm_serial_s=sums[2],
        comm_shared_s=sums[3],
        end_of_run=end_of_run,
        memory_fixed_bytes=_sums(memory[:, :, 0]),
        memory_shared_bytes=_sums(memory[:, :, 1]),
        memory_bytes=np.array([resource.memory_bytes or np.inf for resource in problem.resources]),
        price_per_hour=np.array([resource.price_per_hour for resource in problem.resources]),
        limit=np.array([resource.units_to_be_had for resource in problem.resources], dtype=np.int64),
        crossing_bytes=crossing,
        cut_class=cut_class,
        class_s_per_byte=np.array([cost.s_per_byte for cost in costs]),
        class_site_s_per_byte=np.array([cost.site_s_per_byte for cost in costs]),
        class_latency_s=np.array([cost.latency_s for cost in costs]),
        class_usd_per_byte=np.array([cost.usd_per_byte for cost in costs]),
        classes_of=classes_of,
        slot_of=_slot_of(cut_class, classes_of),
        neighbours=_neighbours(cut_class),
        least_cut=least_cut,
        most_cut=most_cut,
        class_cut=class_cut,
        through_s=_through(sums, crossing, least_cut),
        free_cuts=not problem.links and not problem.site_links and not split_stages,
    )


def _memory(layer: Layer, resource: str) -> tuple[float, float]:
    """Return the bytes of a layer that every unit of a type holds, and those that the units of its stage share."""
    kept = layer.output_bytes if layer.activation_bytes is None else layer.activation_bytes
    time = layer.on.get(resource)
    if time is not None and time.rows_bytes is not None:
        return time.rows_bytes, kept
    if layer.kind == "embedding":
        return 0.0, layer.weight_bytes + layer.optimizer_bytes + layer.index_bytes + kept
    return 2 * layer.weight_bytes + layer.optimizer_bytes + layer.index_bytes, kept


def _sums(values: Floats) -> Floats:
    """Return the sums of the first 0, 1, 2, ... values of each row."""
    sums = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


class _CutCost(NamedTuple):
    """What a cut between two types costs, both ways added up."""

    s_per_byte: float = 0.0
    site_s_per_byte: float = 0.0
    latency_s: float = 0.0
    usd_per_byte: float = 0.0


def _cut_classes(problem: Problem, *, split_stages: bool) -> tuple[Ints, list[_CutCost]]:
    """Return the class of every pair of types, and what a class costs.

    Activations take the link forward and gradients the link back, so a cut costs the sum of both directions, and the
    pair (a, b) costs what (b, a) does.
    """
    names = [resource.name for resource in problem.resources]
    costs = {_CutCost(): FREE_CUT}
    cut_class = np.full((len(names), len(names)), NO_CUT, dtype=np.int64)
    if not problem.links and not problem.site_links:
        cut_class[:] = FREE_CUT
    pairs = [(link.source, link.target) for link in problem.links]
    if problem.site_links:
        pairs += itertools.combinations_with_replacement(names, 2)
    number_of = {name: number for number, name in enumerate(names)}
    known: dict[tuple[str | None, str | None], int] = {}  # where there are no links between types, by pairs of sites
    for one, other in pairs:
        a, b = number_of[one], number_of[other]
        key = (one, other) if problem.links else (problem.resources[a].site, problem.resources[b].site)
        if key not in known:
            joined = problem.can_join(one, other)
            known[key] = costs.setdefault(_cut_cost(problem, one, other), len(costs)) if joined else NO_CUT
        cut_class[a, b] = cut_class[b, a] = known[key]
    if not split_stages:
        np.fill_diagonal(cut_class, NO_CUT)
    return cut_class, list(costs)


def _cut_cost(problem: Problem, one: str, other: str) -> _CutCost:
    """Return what a cut between two types costs, over the link between them and the one between their sites."""
    links = [link for link in (problem.link(one, other), problem.link(other, one)) if link is not None]
    sites = [link for link in (problem.site_link(one, other), problem.site_link(other, one)) if link is not None]
    return _CutCost(
        s_per_byte=sum(1 / link.bytes_per_s for link in links),
        site_s_per_byte=sum(1 / link.bytes_per_s for link in sites),
        latency_s=sum(link.latency_s for link in links) + sum(link.latency_s for link in sites),
        usd_per_byte=sum(link.price_per_byte for link in sites),
    )


def _classes_of(cut_class: Ints) -> Ints:
    """Return for each type the classes it has cuts of, filled up with NO_CUT to one length."""
    rows = [sorted(set(row.tolist()) - {NO_CUT}) for row in cut_class]
    width = max(1, *(len(row) for row in rows))
    return np.array([row + [NO_CUT] * (width - len(row)) for row in rows], dtype=np.int64)


def _slot_of(cut_class: Ints, classes_of: Ints) -> Ints:
    """Return where the class of each pair of types stands among the classes of the first."""
    slots = [{c: slot for slot, c in enumerate(row) if c != NO_CUT} for row in classes_of.tolist()]
    return np.array(
        [[slots[t].get(c, NO_CUT) for c in row] for t, row in enumerate(cut_class.tolist())], dtype=np.int64
    )


def _neighbours(cut_class: Ints) -> Ints:
    """Return for each type those that it has cuts with, filled up with NO_CUT to one length."""
    rows = [np.flatnonzero(row != NO_CUT).tolist() for row in cut_class]
    width = max(1, *(len(row) for row in rows))
    return np.array([row + [NO_CUT] * (width - len(row)) for row in rows], dtype=np.int64)


def _cut_range(classes_of: Ints, class_cut: Floats) -> tuple[Floats, Floats]:
    """Return the least and the most that a cut of each type costs, in each of the three ways in which it takes time."""
    of_types = [class_cut[[c for c in row if c != NO_CUT] or [FREE_CUT]] for row in classes_of.tolist()]
    return np.array([rows.min(axis=0) for rows in of_types]), np.array([rows.max(axis=0) for rows in of_types])


def _through(sums: Floats, crossing_bytes: Floats, least_cut: Floats) -> Floats:
    """Return the sums of each type up to and with each layer, and those of comm with the least cut behind the layer."""
    num_types, num_layers = sums.shape[1], len(crossing_bytes)
    through = np.zeros((num_types, 6, in_blocks(num_layers)))
    through[:, :4, :num_layers] = sums[:, :, 1:].transpose(1, 0, 2)
    through[:, 4:] = through[:, 2:4]
    inside, cut_bytes = num_layers - 1, crossing_bytes[:-1]  # behind the last layer nothing is cut
    through[:, 4, :inside] += np.outer(least_cut[:, 1], cut_bytes) + least_cut[:, 2:]
    through[:, 5, :inside] += np.outer(least_cut[:, 0], cut_bytes)
    return through


def in_blocks(num_layers: int) -> int:
    """Return a number of layers, filled up to whole blocks."""
    return -(-num_layers // BLOCK) * BLOCK
