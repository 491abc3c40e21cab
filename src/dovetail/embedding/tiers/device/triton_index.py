"""The device tier's kernels in Triton that find keys: the index, the search for batches' rows, and their places."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dovetail.embedding.row_metadata import CHANGED
from dovetail.embedding.tiers.device import torch_kernels
from dovetail.embedding.tiers.device.prefetched_batch import LONG_ROW, Grouped

FIRST_FACTOR = tl.constexpr(torch_kernels.FIRST_FACTOR)
SECOND_FACTOR = tl.constexpr(torch_kernels.SECOND_FACTOR)
KEYS_A_PROGRAM = 128
PROBES_A_PROGRAM = 32
"""Keys of a program that probes: all wait for the longest probe among them."""


@triton.jit
def _home(keys, size):  # type: ignore[no-untyped-def]
    spread = keys * FIRST_FACTOR
    spread = (spread ^ (spread >> 29)) * SECOND_FACTOR
    return (((spread >> 32) & 0xFFFFFFFF) * size) >> 32


@triton.jit
def _probe(index, slot_keys, key, active, size):  # type: ignore[no-untyped-def]
    """Return the slots of keys, -1 where they have none or are not `active`."""
    position = _home(key, size)
    found = tl.zeros_like(key).to(tl.int32) - 1
    while tl.max(active.to(tl.int32), axis=0) > 0:
        entry = tl.load(index + position, mask=active, other=0)
        taken = active & (entry > 0)
        there = tl.load(slot_keys + (entry - 1), mask=taken, other=0)
        hit = taken & (there == key)
        found = tl.where(hit, entry - 1, found)
        active = active & (entry != 0) & (hit == 0)
        position = tl.where(position + 1 == size, 0, position + 1)
    return found


@triton.jit
def _put_in(index, key, slot, active, size):  # type: ignore[no-untyped-def]
    """Add keys that are not in the index."""
    position = _home(key, size)
    while tl.max(active.to(tl.int32), axis=0) > 0:
        entry = tl.load(index + position, mask=active, other=1)
        free = active & (entry <= 0)
        # Those that are done, or see an entry taken, compare with a number that is never there, each at its own place.
        old = tl.atomic_cas(index + position, tl.where(free, entry, -9), slot + 1)
        active = active & ((free & (old == entry)) == 0)
        position = tl.where(position + 1 == size, 0, position + 1)


@triton.jit(do_not_specialize=["num"])
def _find(index, slot_keys, keys, slots, num, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < num
    found = _probe(index, slot_keys, tl.load(keys + i, mask=live, other=0), live, size)
    tl.store(slots + i, found, mask=live)


@triton.jit(do_not_specialize=["num"])
def _insert(index, slot_keys, slots, num, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < num
    slot = tl.load(slots + i, mask=live, other=0)
    _put_in(index, tl.load(slot_keys + slot, mask=live, other=0), slot, live, size)


@triton.jit(do_not_specialize=["num"])
def _erase(index, slot_keys, slots, num, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    active = i < num
    slot = tl.load(slots + i, mask=active, other=0)
    position = _home(tl.load(slot_keys + slot, mask=active, other=0), size)
    while tl.max(active.to(tl.int32), axis=0) > 0:
        entry = tl.load(index + position, mask=active, other=0)
        there = active & (entry == slot + 1)
        tl.store(index + position, tl.full([BLOCK], -1, tl.int32), mask=there)
        active = active & (there == 0)
        position = tl.where(position + 1 == size, 0, position + 1)


@triton.jit(do_not_specialize=["num"])
def _look(  # type: ignore[no-untyped-def]
    index,
    slot_keys,
    needed,
    ordered,
    order,
    numbers,
    batch_of,
    batches,
    slots,
    told,
    told_keys,
    missing,
    num,
    size,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < num
    key = tl.load(ordered + i, mask=live, other=0)
    number = tl.load(numbers + i, mask=live, other=0)
    is_last = live & (tl.load(numbers + i + 1, mask=i + 1 < num, other=0) != number)
    owner = tl.load(batch_of + tl.load(order + i, mask=is_last, other=0), mask=is_last, other=0)
    batch = tl.load(batches + owner, mask=is_last, other=0).to(tl.int32)
    found = _probe(index, slot_keys, key, is_last, size)
    there = found >= 0
    old = tl.load(needed + found, mask=there, other=0)
    tl.store(needed + found, tl.maximum(old, batch), mask=there)
    tl.store(slots + number - 1, found, mask=is_last)
    absent = is_last & (found < 0)
    ones = absent.to(tl.int32)
    base = tl.atomic_add(told, tl.sum(ones, axis=0).to(tl.int64))
    at = base + tl.cumsum(ones, axis=0) - ones
    tl.store(told_keys + at, key, mask=absent)
    tl.store(missing + at, number - 1, mask=absent)
    tl.store(missing + num + at, batch, mask=absent)


@triton.jit(do_not_specialize=["num", "stride", "first_seen"])
def _settle(  # type: ignore[no-untyped-def]
    index,
    slot_keys,
    needed,
    seen,
    counts,
    states,
    slots,
    keys,
    missing,
    stride,
    new,
    num,
    size,
    first_seen,
    changed,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < num
    slot = tl.load(new + i, mask=live, other=0)
    key = tl.load(keys + i, mask=live, other=0)
    zeros = tl.zeros([BLOCK], tl.int32)
    tl.store(slot_keys + slot, key, mask=live)
    tl.store(needed + slot, tl.load(missing + stride + i, mask=live, other=0), mask=live)
    tl.store(seen + slot, zeros + first_seen, mask=live)
    tl.store(counts + slot, zeros.to(tl.int16), mask=live)
    tl.store(states + slot, (zeros + changed).to(tl.int8), mask=live)
    tl.store(slots + tl.load(missing + i, mask=live, other=0), slot, mask=live)
    _put_in(index, key, slot, live, size)


@triton.jit(do_not_specialize=["nowhere", "num", "num_batches"])
def _place(  # type: ignore[no-untyped-def]
    order,
    numbers,
    by_batch,
    ranks,
    offsets,
    slots,
    out,
    num,
    num_batches,
    nowhere,
    LONG: tl.constexpr,
    BLOCK: tl.constexpr,
):
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = j < num
    begin, end = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32) + tl.load(offsets + 1)
    base = tl.zeros([BLOCK], tl.int32)
    for b in range(1, num_batches):
        size = tl.load(offsets + b) - tl.load(offsets + b - 1)
        later = j >= tl.load(offsets + b)
        base += tl.where(later, (4 * size + 3 + size // LONG + 1) // 2 * 2, 0)
        begin = tl.where(later, tl.load(offsets + b), begin)
        end = tl.where(later, tl.load(offsets + b + 1), end)
    count, at = end - begin, j - begin
    first_rank = tl.load(ranks + begin, mask=live, other=0)
    num_unique = tl.load(ranks + end - 1, mask=live, other=0) - first_rank + 1
    rank = tl.load(ranks + j, mask=live, other=0)
    before = tl.load(ranks + j - 1, mask=live & (at > 0), other=-1)
    sorted_at = tl.load(by_batch + j, mask=live, other=0)
    asked = tl.load(order + sorted_at, mask=live, other=0).to(tl.int32) - begin
    slot = tl.load(slots + tl.load(numbers + sorted_at, mask=live, other=1) - 1, mask=live, other=0)
    slot = tl.where(slot < 0, nowhere, slot)
    to = out + base
    tl.store(to + asked, slot, mask=live)
    tl.store(to + count + at, asked, mask=live)
    row = rank - first_rank
    is_first = live & (rank != before)
    tl.store(to + 2 * count + row, slot, mask=is_first)
    tl.store(to + 3 * count + row, at, mask=is_first)
    beyond = live & (at >= num_unique)
    tl.store(to + 2 * count + at, tl.zeros([BLOCK], tl.int32) + nowhere, mask=beyond)
    tl.store(to + 3 * count + at, count, mask=beyond)
    is_end = live & (at == count - 1)
    tl.store(to + 4 * count, count, mask=is_end)
    tl.store(to + 4 * count + 1, num_unique, mask=is_end)
    far = tl.load(ranks + j + LONG, mask=is_first & (at + LONG < count), other=-1)
    is_long = is_first & (far == rank)
    listed = tl.atomic_add(to + 4 * count + 2, 1, mask=is_long)
    tl.store(to + 4 * count + 3 + listed, row, mask=is_long)


def find(index: Tensor, slot_keys: Tensor, keys: Tensor) -> Tensor:
    """Return the slot of each key as int32, -1 where it has none."""
    slots = torch.empty(len(keys), dtype=torch.int32, device=keys.device)
    if len(keys):
        _find[_blocks(keys)](index, slot_keys, keys, slots, len(keys), len(index) - 1, BLOCK=KEYS_A_PROGRAM)
    return slots


def insert(index: Tensor, slot_keys: Tensor, slots: Tensor) -> None:
    """Add the keys at `slots`, which are not in the index."""
    if len(slots):
        grid = (triton.cdiv(len(slots), PROBES_A_PROGRAM),)
        _insert[grid](index, slot_keys, slots, len(slots), len(index) - 1, BLOCK=PROBES_A_PROGRAM, num_warps=1)


def erase(index: Tensor, slot_keys: Tensor, slots: Tensor) -> None:
    """Take the keys at `slots` out of the index."""
    if len(slots):
        _erase[_blocks(slots)](index, slot_keys, slots, len(slots), len(index) - 1, BLOCK=KEYS_A_PROGRAM)


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
    """Find the slot of each distinct key, and say which are missing: as in `torch_kernels`."""
    _look[_blocks(slots)](
        index,
        slot_keys,
        needed,
        grouped.ordered,
        grouped.order,
        grouped.numbers,
        grouped.layout.batch_of,
        batches,
        slots,
        told,
        told[torch_kernels.TOLD :],
        missing,
        len(slots),
        len(index) - 1,
        BLOCK=KEYS_A_PROGRAM,
    )


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
    if len(new):
        _settle[(triton.cdiv(len(new), PROBES_A_PROGRAM),)](
            index,
            slot_keys,
            needed,
            seen,
            counts,
            states,
            slots,
            keys,
            missing,
            missing.stride(0),
            new,
            len(new),
            len(index) - 1,
            first_seen,
            CHANGED,
            BLOCK=PROBES_A_PROGRAM,
            num_warps=1,
        )


def place(grouped: Grouped, slots: Tensor, nowhere: int, out: Tensor) -> None:
    """Write the vectors of `Places` of all batches, one after the other; `out` is zero before."""
    layout = grouped.layout
    _place[_blocks(grouped.order)](
        grouped.order,
        grouped.numbers,
        grouped.by_batch,
        grouped.ranks,
        layout.offsets,
        slots,
        out,
        layout.num_keys,
        layout.num_batches,
        nowhere,
        LONG=LONG_ROW,
        BLOCK=KEYS_A_PROGRAM,
    )


def _blocks(items: Tensor) -> tuple[int]:
    """Return how many programs look at so many keys."""
    return (triton.cdiv(len(items), KEYS_A_PROGRAM),)
