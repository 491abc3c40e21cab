"""The device tier's kernels in Triton: the functions of `torch_kernels`, on CUDA, in one launch each.

No kernel reorders or fuses arithmetic on values: what they write has the bits of the host's kernels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dovetail.embedding.device import torch_kernels
from dovetail.embedding.slot_line import CHANGED, MOST_COUNTED

FIRST_FACTOR = tl.constexpr(torch_kernels.FIRST_FACTOR)
SECOND_FACTOR = tl.constexpr(torch_kernels.SECOND_FACTOR)
GOLDEN = tl.constexpr(torch_kernels.GOLDEN)
MIX_1, MIX_2 = tl.constexpr(torch_kernels.MIX_1), tl.constexpr(torch_kernels.MIX_2)
KEYS_A_PROGRAM = 128
ROW_NUMBERS_A_PROGRAM = 256
"""Rows of a program times their width: a few numbers a thread."""


@triton.jit
def _home(keys, size):  # type: ignore[no-untyped-def]
    spread = keys * FIRST_FACTOR
    spread = (spread ^ (spread >> 29)) * SECOND_FACTOR
    return (((spread >> 32) & 0xFFFFFFFF) * size) >> 32


@triton.jit
def _mix(words):  # type: ignore[no-untyped-def]
    words = (words ^ ((words >> 30) & 0x3FFFFFFFF)) * MIX_1
    words = (words ^ ((words >> 27) & 0x1FFFFFFFFF)) * MIX_2
    return words ^ ((words >> 31) & 0x1FFFFFFFF)


@triton.jit(do_not_specialize=["num"])
def _find(index, slot_keys, keys, slots, num, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    active = i < num
    key = tl.load(keys + i, mask=active, other=0)
    position = _home(key, size)
    found = tl.full([BLOCK], -1, tl.int32)
    while tl.max(active.to(tl.int32), axis=0) > 0:
        entry = tl.load(index + position, mask=active, other=0)
        taken = active & (entry > 0)
        there = tl.load(slot_keys + (entry - 1), mask=taken, other=0)
        hit = taken & (there == key)
        found = tl.where(hit, entry - 1, found)
        active = active & (entry != 0) & (hit == 0)
        position = tl.where(position + 1 == size, 0, position + 1)
    tl.store(slots + i, found, mask=i < num)


@triton.jit(do_not_specialize=["num"])
def _insert(index, slot_keys, slots, num, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    active = i < num
    slot = tl.load(slots + i, mask=active, other=0)
    position = _home(tl.load(slot_keys + slot, mask=active, other=0), size)
    while tl.max(active.to(tl.int32), axis=0) > 0:
        # Those that are done look at the last entry, beyond the index proper, for a number that is never there.
        old = tl.atomic_cas(index + tl.where(active, position, size), tl.where(active, 0, -9), slot + 1)
        active = active & (old != 0)
        position = tl.where(position + 1 == size, 0, position + 1)


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
def _fill_first(  # type: ignore[no-untyped-def]
    rows,
    stride,
    slots,
    keys,
    num,
    width,
    seed,
    scale,
    state,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = i < num
    column = tl.arange(0, COLUMNS)
    stream = _mix(_mix(tl.load(keys + i, mask=live, other=0)) + seed)
    words = _mix(stream[:, None] + (column + 1).to(tl.int64)[None, :] * GOLDEN)
    unit = ((words >> 40) & 0xFFFFFF).to(tl.float64) * 1.1920928955078125e-07 - 1.0  # 2 ** -23
    values = (unit * tl.load(scale)).to(tl.float32)
    slot = tl.load(slots + i, mask=live, other=0).to(tl.int64)
    values = tl.where((column < width)[None, :], values, state)
    tl.store(rows + slot[:, None] * stride + column[None, :], values, mask=live[:, None] & (column < stride)[None, :])


@triton.jit
def _sum_rows(  # type: ignore[no-untyped-def]
    source,
    stride,
    at,
    starts,
    out,
    num,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    first = tl.program_id(0) * ROWS
    count = tl.load(num)
    if first < count:
        u = first + tl.arange(0, ROWS)
        column = tl.arange(0, COLUMNS)
        begin = tl.load(starts + u, mask=u < count, other=0)
        length = tl.load(starts + u + 1, mask=u < count, other=0) - begin
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in range(0, tl.max(length, axis=0), UNROLL):
            for j in tl.static_range(UNROLL):
                here = k + j < length
                row = tl.load(at + begin + (k + j), mask=here, other=0).to(tl.int64)
                mask = here[:, None] & (column < width)[None, :]
                value = tl.load(source + row[:, None] * stride + column[None, :], mask=mask, other=0.0)
                total = tl.where(here[:, None], tl.where(k + j == 0, value, total + value), total)
        mask = (u < count)[:, None] & (column < width)[None, :]
        tl.store(out + u[:, None].to(tl.int64) * width + column[None, :], total, mask=mask)


@triton.jit(do_not_specialize=["num"])
def _gather(rows, stride, slots, out, num, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    slot = tl.load(slots + i, mask=i < num, other=0).to(tl.int64)
    mask = (i < num)[:, None] & (column < width)[None, :]
    values = tl.load(rows + slot[:, None] * stride + column[None, :], mask=mask, other=0.0)
    tl.store(out + i[:, None].to(tl.int64) * width + column[None, :], values, mask=mask)


@triton.jit(do_not_specialize=["num", "batch"])
def _need(needed, slots, batch, num, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    u = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + u, mask=u < num, other=-1)
    old = tl.load(needed + slot, mask=slot >= 0, other=0)
    tl.store(needed + slot, tl.maximum(old, batch), mask=slot >= 0)


@triton.jit(do_not_specialize=["num", "batch", "first_seen"])
def _begin(  # type: ignore[no-untyped-def]
    slot_keys,
    needed,
    seen,
    counts,
    states,
    slots,
    keys,
    num,
    batch,
    first_seen,
    changed,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < num
    slot = tl.load(slots + i, mask=live, other=0)
    zeros = tl.zeros([BLOCK], tl.int32)
    tl.store(slot_keys + slot, tl.load(keys + i, mask=live, other=0), mask=live)
    tl.store(needed + slot, zeros + batch, mask=live)
    tl.store(seen + slot, zeros + first_seen, mask=live)
    tl.store(counts + slot, zeros.to(tl.int16), mask=live)
    tl.store(states + slot, (zeros + changed).to(tl.int8), mask=live)


@triton.jit(do_not_specialize=["num_unique", "nowhere"])
def _place(order, number_of, slots, out, count, num_unique, nowhere, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < count
    asked = tl.load(order + i, mask=live, other=0)
    number = tl.load(number_of + i, mask=live, other=0)
    before = tl.load(number_of + i - 1, mask=live & (i > 0), other=-1)
    slot = tl.load(slots + number, mask=live, other=0)
    tl.store(out + asked, tl.where(slot < 0, nowhere, slot), mask=live)
    tl.store(out + count + i, asked.to(tl.int32), mask=live)
    own = tl.load(slots + i, mask=i < num_unique, other=-1)
    tl.store(out + 2 * count + i, tl.where(own < 0, nowhere, own), mask=live)
    tl.store(out + 3 * count + number, i, mask=live & (number != before))
    tl.store(out + 3 * count + i, tl.zeros([BLOCK], tl.int32) + count, mask=(i >= num_unique) & (i <= count))
    tl.store(out + 4 * count + 1 + i, tl.zeros([BLOCK], tl.int32) + num_unique, mask=i == 0)


@triton.jit
def _touch(seen, counts, slots, clock, num, most, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    u = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = u < tl.load(num)
    slot = tl.load(slots + u, mask=live, other=0)
    count = tl.load(counts + slot, mask=live, other=0).to(tl.int32) + 1
    tl.store(counts + slot, tl.minimum(count, most).to(tl.int16), mask=live)
    tl.store(seen + slot, tl.zeros([BLOCK], tl.int32) + tl.load(clock), mask=live)


@triton.jit
def _step(  # type: ignore[no-untyped-def]
    rows,
    stride,
    states,
    slots,
    sums,
    settings,
    num,
    width,
    changed,
    RULE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    first = tl.program_id(0) * ROWS
    count = tl.load(num)
    if first < count:
        u = first + tl.arange(0, ROWS)
        column = tl.arange(0, COLUMNS)
        slot = tl.load(slots + u, mask=u < count, other=0)
        mask = (u < count)[:, None] & (column < width)[None, :]
        at = rows + slot.to(tl.int64)[:, None] * stride + column[None, :]
        g = tl.load(sums + u[:, None].to(tl.int64) * width + column[None, :], mask=mask, other=0.0)
        values = tl.load(at, mask=mask, other=0.0)
        change = tl.load(settings) * g
        if RULE == 1:  # adagrad
            total = tl.load(at + width, mask=mask, other=0.0) + g * g
            tl.store(at + width, total, mask=mask)
            change = tl.div_rn(change, tl.sqrt_rn(total) + tl.load(settings + 1))
        tl.store(at, values - change, mask=mask)
        tl.store(states + slot, tl.zeros([ROWS], tl.int8) + changed, mask=u < count)


def find(index: Tensor, slot_keys: Tensor, keys: Tensor) -> Tensor:
    """Return the slot of each key as int32, -1 where it has none."""
    slots = torch.empty(len(keys), dtype=torch.int32, device=keys.device)
    if len(keys):
        _find[_blocks(keys)](index, slot_keys, keys, slots, len(keys), len(index) - 1, BLOCK=KEYS_A_PROGRAM)
    return slots


def insert(index: Tensor, slot_keys: Tensor, slots: Tensor) -> None:
    """Add the keys at `slots`, which are not in the index."""
    if len(slots):
        _insert[_blocks(slots)](index, slot_keys, slots, len(slots), len(index) - 1, BLOCK=KEYS_A_PROGRAM)


def erase(index: Tensor, slot_keys: Tensor, slots: Tensor) -> None:
    """Take the keys at `slots` out of the index."""
    if len(slots):
        _erase[_blocks(slots)](index, slot_keys, slots, len(slots), len(index) - 1, BLOCK=KEYS_A_PROGRAM)


def need(needed: Tensor, slots: Tensor, batch: int) -> None:
    """Have rows stay for a batch; -1 is no row."""
    if len(slots):
        _need[_blocks(slots)](needed, slots, batch, len(slots), BLOCK=KEYS_A_PROGRAM)


def begin(
    slot_keys: Tensor,
    needed: Tensor,
    seen: Tensor,
    counts: Tensor,
    states: Tensor,
    slots: Tensor,
    keys: Tensor,
    batch: int,
    first_seen: int,
) -> None:
    """Say whose rows lie at slots, and for which batch; they differ from any checkpoint."""
    if len(slots):
        _begin[_blocks(slots)](
            *(slot_keys, needed, seen, counts, states, slots, keys, len(slots), batch, first_seen, CHANGED),
            BLOCK=KEYS_A_PROGRAM,
        )


def place(order: Tensor, number_of: Tensor, slots: Tensor, nowhere: int, out: Tensor) -> None:
    """Write the vector of `Places`."""
    blocks = (triton.cdiv(len(order) + 1, KEYS_A_PROGRAM),)
    _place[blocks](order, number_of, slots, out, len(order), len(slots), nowhere, BLOCK=KEYS_A_PROGRAM)


def fill_first(rows: Tensor, slots: Tensor, keys: Tensor, width: int, seed: int, scale: Tensor, state: float) -> None:
    """Give rows the first values of their keys, as `first_values` does, and their first state."""
    if len(keys):
        shape = _tile(rows.shape[1])
        grid = (triton.cdiv(len(keys), shape["ROWS"]),)
        _fill_first[grid](
            rows, rows.stride(0), slots, keys, len(keys), width, seed, scale, state, **shape, enable_fp_fusion=False
        )


def sum_rows(source: Tensor, at: Tensor, starts: Tensor, width: int, out: Tensor, num: Tensor | None = None) -> None:
    """Write sums of rows of `source`: out[u] is that over at[starts[u]:starts[u + 1]], one after the other."""
    if len(out):
        shape = _tile(width)
        grid = (triton.cdiv(len(out), shape["ROWS"]),)
        _sum_rows[grid](
            *(source, source.stride(0), at, starts, out, _count(num, out), width),
            **shape,
            UNROLL=8,
            num_warps=2,
            enable_fp_fusion=False,
        )


def gather(rows: Tensor, slots: Tensor, width: int, out: Tensor) -> None:
    """Copy the values at slots."""
    if len(slots):
        shape = _tile(width)
        grid = (triton.cdiv(len(slots), shape["ROWS"]),)
        _gather[grid](rows, rows.stride(0), slots, out, len(slots), width, **shape)


def touch(seen: Tensor, counts: Tensor, slots: Tensor, clock: Tensor, num: Tensor | None = None) -> None:
    """Count one access for distinct rows, at the step that `clock` says."""
    if len(slots):
        _touch[_blocks(slots)](seen, counts, slots, clock, _count(num, slots), MOST_COUNTED, BLOCK=KEYS_A_PROGRAM)


RULES = {"sgd": 0, "adagrad": 1}
"""Row optimizers with a kernel of their own; the others take the torch operations, which have the same bits."""


def step(
    name: str,
    rows: Tensor,
    states: Tensor,
    slots: Tensor,
    sums: Tensor,
    settings: Tensor,
    num: Tensor | None = None,
) -> None:
    """Step distinct rows by the sums of their gradients."""
    if name not in RULES:
        torch_kernels.step(name, rows, states, slots, sums, settings)
    elif len(slots):
        width = sums.shape[1]
        shape = _tile(width)
        grid = (triton.cdiv(len(slots), shape["ROWS"]),)
        _step[grid](
            *(rows, rows.stride(0), states, slots, sums, settings, _count(num, slots), width, CHANGED),
            RULE=RULES[name],
            **shape,
            enable_fp_fusion=False,
        )


def _blocks(items: Tensor) -> tuple[int]:
    """Return how many programs look at so many keys."""
    return (triton.cdiv(len(items), KEYS_A_PROGRAM),)


def _tile(width: int) -> dict[str, Any]:
    """Return the rows and columns that a program has."""
    columns = triton.next_power_of_2(width)
    return {"ROWS": max(1, ROW_NUMBERS_A_PROGRAM // columns), "COLUMNS": columns}


def _count(num: Tensor | None, items: Tensor) -> Tensor:
    """Return a count that lies on the device."""
    return torch.tensor(len(items), dtype=torch.int32, device=items.device) if num is None else num
