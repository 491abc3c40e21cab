"""The device tier's kernels in plain torch: for any device, and what the Triton kernels have to equal.

The index is a vector of int32: an entry is 0 where it is free, -1 where a key was taken out, else a slot and one; the
key is read at the slot. Its last entry is beyond the index proper, for kernels that need somewhere to write.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.embedding.row_metadata import CHANGED, MOST_COUNTED
from dovetail.embedding.tiers.device.prefetched_batch import LONG_ROW, MOST_TOGETHER, BatchPlaces, Grouped, places_size

FIRST_FACTOR, SECOND_FACTOR = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9
"""Odd numbers that spread keys; below 2**63, so that int64 has them."""
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
"""The numbers of `splitmix` as int64."""
TOLD = 4 * MOST_TOGETHER
"""Where keys begin in what the device tells the host of a search; before them are counts."""


def home_of(keys: Tensor, size: int) -> Tensor:
    """Return where the search for each key begins among `size` entries."""
    spread = keys * FIRST_FACTOR
    spread = (spread ^ (spread >> 29)) * SECOND_FACTOR
    return (((spread >> 32) & 0xFFFFFFFF) * size) >> 32


def find(index: Tensor, slot_keys: Tensor, keys: Tensor) -> Tensor:
    """Return the slot of each key as int32, -1 where it has none."""
    size = len(index) - 1
    slots = torch.full((len(keys),), -1, dtype=torch.int32, device=keys.device)
    active = torch.arange(len(keys), device=keys.device)
    position = home_of(keys, size)
    while len(active):
        entry = index[position]
        hit = (entry > 0) & (slot_keys[(entry - 1).clamp(min=0).long()] == keys[active])
        slots[active[hit]] = entry[hit] - 1
        on = (entry != 0) & ~hit
        active, position = active[on], (position[on] + 1) % size
    return slots


def insert(index: Tensor, slot_keys: Tensor, slots: Tensor) -> None:
    """Add the keys at `slots`, which are not in the index."""
    size = len(index) - 1
    entries = slots + 1
    position = home_of(slot_keys[slots.long()], size)
    while len(entries):
        free = index[position] <= 0
        index[position[free]] = entries[free]
        lost = index[position] != entries
        entries, position = entries[lost], (position[lost] + 1) % size


def erase(index: Tensor, slot_keys: Tensor, slots: Tensor) -> None:
    """Take the keys at `slots` out of the index."""
    size = len(index) - 1
    entries = slots + 1
    position = home_of(slot_keys[slots.long()], size)
    while len(entries):
        there = index[position] == entries
        index[position[there]] = -1
        entries, position = entries[~there], (position[~there] + 1) % size


def look(
    index: Tensor,
    slot_keys: Tensor,
    needed: Tensor,
    grouped: Grouped,
    batches: Tensor,
    slots: Tensor,
    told: Tensor,
    missing: Tensor,
) -> None:
    """Find the slot of each distinct key: slots[u], -1 where it has none; rows there are stay for the last batch.

    The number of those missing is added to told[0], their keys are written to told[TOLD:], which distinct keys they are
    to missing[0], and the last batch that needs them to missing[1], in any order. `batches` are the batches' numbers.
    """
    unique = torch.ones(len(grouped.ordered), dtype=torch.bool, device=slots.device)
    unique[:-1] = grouped.numbers[1:] != grouped.numbers[:-1]  # the last look-up of each
    keys = grouped.ordered[unique]
    last = batches[grouped.layout.batch_of[grouped.order[unique]].long()].to(torch.int32)
    found = find(index, slot_keys, keys)
    slots[: len(keys)] = found
    there = found >= 0
    where = found[there].long()
    needed[where] = torch.maximum(needed[where], last[there])
    at = (~there).nonzero().squeeze(1)
    told[0] += len(at)
    told[TOLD : TOLD + len(at)] = keys[at]
    missing[0, : len(at)], missing[1, : len(at)] = at.to(torch.int32), last[at]


def settle(
    index: Tensor,
    slot_keys: Tensor,
    needed: Tensor,
    seen: Tensor,
    counts: Tensor,
    states: Tensor,
    slots: Tensor,
    keys: Tensor,
    missing: Tensor,
    new: Tensor,
    first_seen: int,
) -> None:
    """Give missing keys new slots, in the index and in `slots`; their rows differ from any checkpoint."""
    where = new.long()
    slot_keys[where], needed[where] = keys, missing[1, : len(new)]
    seen[where], counts[where], states[where] = first_seen, 0, CHANGED
    slots[missing[0, : len(new)].long()] = new
    insert(index, slot_keys, new)


def place(grouped: Grouped, slots: Tensor, nowhere: int, out: Tensor) -> None:
    """Write the vectors of `BatchPlaces` of all batches, one after the other; `out` is zero before."""
    base = 0
    for begin, count in zip(grouped.layout.begins, grouped.layout.sizes, strict=True):
        by_key = grouped.by_batch[begin : begin + count]
        order = grouped.order[by_key] - begin
        ranks = grouped.ranks[begin : begin + count].long()
        number_of = ranks - ranks[0]
        rows = slots[grouped.numbers[by_key].long() - 1]
        rows = torch.where(rows < 0, nowhere, rows)
        part = out[base : base + places_size(count)]
        part[order] = rows
        part[count : 2 * count] = order.to(torch.int32)
        part[2 * count : 3 * count], part[3 * count : 4 * count + 1] = nowhere, count
        part[2 * count + number_of] = rows
        at = torch.arange(count, device=out.device)
        first = torch.ones(count, dtype=torch.bool, device=out.device)
        first[1:] = number_of[1:] != number_of[:-1]
        begins = at[first]
        part[3 * count : 3 * count + len(begins)] = begins.to(torch.int32)
        part[4 * count + 1] = len(begins)
        lengths = torch.diff(begins, append=begins.new_tensor([count]))
        long = (lengths > LONG_ROW).nonzero().squeeze(1)
        part[4 * count + 2] = len(long)
        part[4 * count + 3 : 4 * count + 3 + len(long)] = long.to(torch.int32)
        base += len(part)


def fill_first(rows: Tensor, slots: Tensor, keys: Tensor, width: int, seed: int, scale: Tensor, state: float) -> None:
    """Give rows the first values of their keys, as `first_values` does, and their first state.

    `seed` is the mixture of the table's seed, as int64; `scale` is float64.
    """
    columns = torch.arange(1, width + 1, device=keys.device) * GOLDEN
    words = _mix(_mix(_mix(keys) + seed)[:, None] + columns)
    values = (((words >> 40) & 0xFFFFFF).double() * 2.0**-23 - 1.0) * scale
    fresh = torch.full((len(keys), rows.shape[1]), state, dtype=torch.float32, device=rows.device)
    fresh[:, :width] = values.float()
    rows[slots.long()] = fresh


def _mix(words: Tensor) -> Tensor:
    """Return splitmix's mixture of int64 words that stand for unsigned ones."""
    words = (words ^ ((words >> 30) & (2**34 - 1))) * MIX_1
    words = (words ^ ((words >> 27) & (2**37 - 1))) * MIX_2
    return words ^ ((words >> 31) & (2**33 - 1))


def sum_rows(source: Tensor, at: Tensor, starts: Tensor, width: int, out: Tensor, num: Tensor | None = None) -> None:
    """Write sums of rows of `source`: out[u] is that over at[starts[u]:starts[u + 1]], one after the other in float32.

    Nothing gives zeros. Only the first `num` sums are wanted, and others may be left as they are.
    """
    begins = starts[:-1]
    lengths = starts[1:] - begins
    out.zero_()
    for position in range(int(lengths.max()) if len(lengths) else 0):
        here = lengths > position
        row = source[at[(begins[here] + position).long()].long(), :width]
        out[here] = row if position == 0 else out[here] + row


def gather(rows: Tensor, slots: Tensor, width: int, out: Tensor) -> None:
    """Copy the values at slots."""
    torch.index_select(rows[:, :width], 0, slots, out=out)


def touch(seen: Tensor, counts: Tensor, slots: Tensor, clock: Tensor, num: Tensor | None = None) -> None:
    """Count one access for distinct rows, at the step that `clock` says."""
    where = slots.long()
    seen[where] = clock
    counts[where] = (counts[where] + 1).clamp(max=MOST_COUNTED)


def step(
    name: str,
    rows: Tensor,
    states: Tensor,
    slots: Tensor,
    sums: Tensor,
    settings: Tensor,
    num: Tensor | None = None,
) -> None:
    """Step distinct rows by the sums of their gradients: the arithmetic of `row_optimizer`, operation by operation."""
    where = slots.long()
    rows[where] = STEPS[name](rows[where], sums, settings)
    states.index_fill_(0, where, CHANGED)  # a number, which a CUDA graph can hold


def step_sums(
    name: str,
    rows: Tensor,
    states: Tensor,
    unique: Tensor,
    places: BatchPlaces,
    order: Tensor,
    gradients: Tensor,
    settings: Tensor,
) -> None:
    """Step the distinct rows at `unique` by the sums of their gradients: those of look-up i are gradients[order[i]]."""
    width = gradients.shape[1]
    sums = torch.empty((len(unique), width), dtype=torch.float32, device=rows.device)
    sum_rows(gradients, order, places.starts[: len(unique) + 1], width, sums, places.num)
    step(name, rows, states, unique, sums, settings, places.num)


def _root(numbers: Tensor) -> Tensor:
    """Return square roots rounded once, which PyTorch's own for the CPU are not."""
    return numbers.double().sqrt().float()


def _sgd(rows: Tensor, g: Tensor, settings: Tensor) -> Tensor:
    return rows - settings[0] * g


def _adagrad(rows: Tensor, g: Tensor, settings: Tensor) -> Tensor:
    width = g.shape[1]
    total = rows[:, width:] + g * g
    return torch.cat([rows[:, :width] - settings[0] * g / (_root(total) + settings[1]), total], dim=1)


def _row_wise_adagrad(rows: Tensor, g: Tensor, settings: Tensor) -> Tensor:
    width = g.shape[1]
    square = torch.zeros_like(g[:, 0])
    for column in range(width):
        square = square + g[:, column] * g[:, column]
    total = rows[:, width] + square / torch.full_like(square, width)  # by a number, CUDA would multiply by its inverse
    divisor = (_root(total) + settings[1])[:, None]
    return torch.cat([rows[:, :width] - settings[0] * g / divisor, total[:, None]], dim=1)


def _adam(rows: Tensor, g: Tensor, settings: Tensor) -> Tensor:
    width = g.shape[1]
    rate, left1, left2, epsilon = settings[0], settings[1], settings[2], settings[3]
    before, square = rows[:, width : 2 * width], rows[:, 2 * width :]
    first = before + (g - before) * left1
    second = square + (g * g - square) * left2
    return torch.cat([rows[:, :width] - rate * (first / (_root(second) + epsilon)), first, second], dim=1)


def _adam_per_row(rows: Tensor, g: Tensor, settings: Tensor) -> Tensor:
    width = g.shape[1]
    rate, beta1, beta2, epsilon = settings[0], settings[1], settings[2], settings[3]
    left1 = rows[:, 3 * width : 3 * width + 1] * beta1 + (1 - beta1)
    left2 = rows[:, 3 * width + 1 :] * beta2 + (1 - beta2)
    first = beta1 * rows[:, width : 2 * width] + (1 - beta1) * g
    second = beta2 * rows[:, 2 * width : 3 * width] + (1 - beta2) * (g * g)
    values = rows[:, :width] - rate * (first / left1) / (_root(second / left2) + epsilon)
    return torch.cat([values, first, second, left1, left2], dim=1)


def _ftrl(rows: Tensor, g: Tensor, settings: Tensor) -> Tensor:
    width = g.shape[1]
    rate, beta, l1, l2 = settings[0], settings[1], settings[2], settings[3]
    values, before = rows[:, :width], rows[:, 2 * width :]
    after = before + g * g
    root = _root(after)
    z = rows[:, width : 2 * width] + (g - (root - _root(before)) / rate * values)
    full = -(z - torch.where(z > 0, l1, -l1)) / ((beta + root) / rate + l2)
    return torch.cat([torch.where(z.abs() <= l1, torch.zeros_like(z), full), z, after], dim=1)


STEPS = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "row-wise-adagrad": _row_wise_adagrad,
    "adam": _adam,
    "adam-per-row": _adam_per_row,
    "ftrl": _ftrl,
}
