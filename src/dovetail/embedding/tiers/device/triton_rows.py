"""The device tier's kernels in Triton that read, sum and step rows.

No kernel reorders or fuses arithmetic on values: what they write has the bits of the host's kernels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dovetail.embedding.row_metadata import CHANGED, MOST_COUNTED
from dovetail.embedding.tiers.device import torch_kernels
from dovetail.embedding.tiers.device.prefetched_batch import LONG_ROW, BatchPlaces

GOLDEN = tl.constexpr(torch_kernels.GOLDEN)
MIX_1, MIX_2 = tl.constexpr(torch_kernels.MIX_1), tl.constexpr(torch_kernels.MIX_2)
KEYS_A_PROGRAM = 128
NUMBERS_A_PROGRAM = 256
"""Rows of a program times their width: a few numbers a thread."""
SUMS_A_PROGRAM = 128
"""The same for sums, of which some take long: with fewer in a program, fewer wait for the longest."""


@triton.jit
def _mix(words):  # type: ignore[no-untyped-def]
    words = (words ^ ((words >> 30) & 0x3FFFFFFFF)) * MIX_1
    words = (words ^ ((words >> 27) & 0x1FFFFFFFFF)) * MIX_2
    return words ^ ((words >> 31) & 0x1FFFFFFFF)


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
def _summed(source, stride, at, begin, length, columns, width, UNROLL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the sums of rows at[begin : begin + length], one after the other, so many loads under way at once."""
    total = tl.zeros([begin.shape[0], columns.shape[0]], tl.float32)
    for k in range(0, tl.max(length, axis=0), UNROLL):
        for j in tl.static_range(UNROLL):
            here = k + j < length
            row = tl.load(at + begin + (k + j), mask=here, other=0).to(tl.int64)
            mask = here[:, None] & (columns < width)[None, :]
            value = tl.load(source + row[:, None] * stride + columns[None, :], mask=mask, other=0.0)
            total = tl.where(here[:, None], tl.where(k + j == 0, value, total + value), total)
    return total


# Parts of a batch's places begin anywhere: a kernel for each way they are aligned would compile again and again.
@triton.jit(do_not_specialize_on_alignment=["at", "starts", "num"])
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
        total = _summed(source, stride, at, begin, length, column, width, UNROLL)
        mask = (u < count)[:, None] & (column < width)[None, :]
        tl.store(out + u[:, None].to(tl.int64) * width + column[None, :], total, mask=mask)


@triton.jit(do_not_specialize=["num"], do_not_specialize_on_alignment=["slots"])
def _gather(rows, stride, slots, out, num, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    slot = tl.load(slots + i, mask=i < num, other=0).to(tl.int64)
    mask = (i < num)[:, None] & (column < width)[None, :]
    values = tl.load(rows + slot[:, None] * stride + column[None, :], mask=mask, other=0.0)
    tl.store(out + i[:, None].to(tl.int64) * width + column[None, :], values, mask=mask)


@triton.jit(do_not_specialize_on_alignment=["slots", "num"])
def _touch(seen, counts, slots, clock, num, most, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    u = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = u < tl.load(num)
    slot = tl.load(slots + u, mask=live, other=0)
    count = tl.load(counts + slot, mask=live, other=0).to(tl.int32) + 1
    tl.store(counts + slot, tl.minimum(count, most).to(tl.int16), mask=live)
    tl.store(seen + slot, tl.zeros([BLOCK], tl.int32) + tl.load(clock), mask=live)


@triton.jit
def _stepped(rows, stride, states, slot, g, live, column, settings, width, changed, RULE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Step the rows at slots by `g`."""
    mask = live[:, None] & (column < width)[None, :]
    at = rows + slot.to(tl.int64)[:, None] * stride + column[None, :]
    values = tl.load(at, mask=mask, other=0.0)
    change = tl.load(settings) * g
    if RULE == 1:  # adagrad
        total = tl.load(at + width, mask=mask, other=0.0) + g * g
        tl.store(at + width, total, mask=mask)
        change = tl.div_rn(change, tl.sqrt_rn(total) + tl.load(settings + 1))
    if RULE == 2:  # adam
        before = tl.load(at + width, mask=mask, other=0.0)
        square = tl.load(at + 2 * width, mask=mask, other=0.0)
        first = before + (g - before) * tl.load(settings + 1)
        second = square + (g * g - square) * tl.load(settings + 2)
        tl.store(at + width, first, mask=mask)
        tl.store(at + 2 * width, second, mask=mask)
        change = tl.load(settings) * tl.div_rn(first, tl.sqrt_rn(second) + tl.load(settings + 3))
    tl.store(at, values - change, mask=mask)
    tl.store(states + slot, tl.zeros_like(slot).to(tl.int8) + changed, mask=live)


@triton.jit(
    do_not_specialize=["most_long"],
    do_not_specialize_on_alignment=["unique", "order", "starts", "num", "long"],
)
def _step_sums(  # type: ignore[no-untyped-def]
    rows,
    stride,
    states,
    unique,
    source,
    source_stride,
    order,
    starts,
    num,
    long,
    settings,
    width,
    changed,
    most_long,
    LONG: tl.constexpr,
    RULE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    UNROLL: tl.constexpr,
    LONG_UNROLL: tl.constexpr,
):
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    if program < most_long:  # rows of many look-ups go first, one a program
        if program < tl.load(long):
            u = tl.load(long + 1 + program) + tl.arange(0, 1)
            begin = tl.load(starts + u)
            length = tl.load(starts + u + 1) - begin
            g = _summed(source, source_stride, order, begin, length, column, width, LONG_UNROLL)
            slot = tl.load(unique + u)
            _stepped(rows, stride, states, slot, g, length > 0, column, settings, width, changed, RULE)
    else:
        first = (program - most_long) * ROWS
        count = tl.load(num)
        if first < count:
            u = first + tl.arange(0, ROWS)
            begin = tl.load(starts + u, mask=u < count, other=0)
            length = tl.load(starts + u + 1, mask=u < count, other=0) - begin
            live = (u < count) & (length <= LONG)
            length = tl.where(live, length, 0)
            g = _summed(source, source_stride, order, begin, length, column, width, UNROLL)
            slot = tl.load(unique + u, mask=live, other=0)
            _stepped(rows, stride, states, slot, g, live, column, settings, width, changed, RULE)


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
        shape = _tile(width, SUMS_A_PROGRAM)
        grid = (triton.cdiv(len(out), shape["ROWS"]),)
        _sum_rows[grid](
            source,
            source.stride(0),
            at,
            starts,
            out,
            _count(num, out),
            width,
            **shape,
            UNROLL=16,
            num_warps=1,
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


RULES = {"sgd": 0, "adagrad": 1, "adam": 2}
"""Row optimizers with a kernel of their own; the others take the torch operations, which have the same bits."""


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
    if name not in RULES:
        sums = torch.empty((len(unique), width), dtype=torch.float32, device=rows.device)
        sum_rows(gradients, order, places.starts[: len(unique) + 1], width, sums, places.num)
        torch_kernels.step(name, rows, states, unique, sums, settings)
    elif len(unique):
        shape = _tile(width, SUMS_A_PROGRAM)
        most_long = places.num_keys // LONG_ROW
        _step_sums[(most_long + triton.cdiv(len(unique), shape["ROWS"]),)](
            rows,
            rows.stride(0),
            states,
            unique,
            gradients,
            gradients.stride(0),
            order,
            places.starts,
            places.num,
            places.long,
            settings,
            width,
            CHANGED,
            most_long,
            LONG=LONG_ROW,
            RULE=RULES[name],
            **shape,
            UNROLL=8,
            LONG_UNROLL=32,
            num_warps=1,
            enable_fp_fusion=False,
        )


def _tile(width: int, numbers: int = NUMBERS_A_PROGRAM) -> dict[str, Any]:
    """Return the rows and columns that a program has."""
    columns = triton.next_power_of_2(width)
    return {"ROWS": max(1, numbers // columns), "COLUMNS": columns}


def _blocks(items: Tensor) -> tuple[int]:
    """Return how many programs look at so many keys."""
    return (triton.cdiv(len(items), KEYS_A_PROGRAM),)


def _count(num: Tensor | None, items: Tensor) -> Tensor:
    """Return a count that lies on the device."""
    return torch.tensor(len(items), dtype=torch.int32, device=items.device) if num is None else num
