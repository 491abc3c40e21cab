"""The hot loop of reading: samples of many parts into the tensors of a batch, by one compiled pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import carray, njit  # type: ignore[attr-defined]
from numpy.typing import NDArray
from torch import Tensor

from dovetail.data.batch import Batch, even_offsets
from dovetail.data.errors import DataError
from dovetail.data.packed import PackedSamples
from dovetail.data.pointers import FAR, pointer

# Where `PackedSamples.addresses` has what.
_ROWS, _IDS, _OFFSETS, _DENSE, _LABELS, _WEIGHTS, _SAMPLE_IDS, _PLACES = 0, 2, 4, 6, 8, 10, 12, 14


@njit(cache=True, nogil=True)
def locate(
    samples: NDArray[np.int64], firsts: NDArray[np.int64], part_of: NDArray[np.int32], used: NDArray[np.bool_]
) -> None:  # pragma: no cover
    """Say in which part each sample lies, the parts given by their first samples, and which parts hold any."""
    here = 0
    for i in range(samples.size):
        sample = samples[i]
        if sample < firsts[here] or (here + 1 < firsts.size and sample >= firsts[here + 1]):
            low, high = 0, firsts.size
            while high - low > 1:
                middle = (low + high) >> 1
                if firsts[middle] <= sample:
                    low = middle
                else:
                    high = middle
            here = low
        part_of[i] = here
        used[here] = True


@njit(cache=True, nogil=True)
def measure(
    samples: NDArray[np.int64],
    part_of: NDArray[np.int32],
    firsts: NDArray[np.int64],
    table: NDArray[np.int64],
    places: NDArray[np.int64],
) -> tuple[int, Any]:  # pragma: no cover
    """Find where in its part each sample lies, -1 for broken ones; return how many there are, and their ids.

    A sample that no part holds makes both -1.
    """
    good, num_ids = 0, np.int64(0)
    for i in range(samples.size):
        part = part_of[i]
        row = samples[i] - firsts[part]
        if row < 0 or row >= table[part, _ROWS]:
            return -1, np.int64(-1)
        place = row
        if table[part, _PLACES]:
            place = np.int64(carray(pointer(table[part, _PLACES]), (FAR,), np.int32)[row])
        places[i] = place
        if place < 0:
            continue
        good += 1
        slots, begin, end = table[part, _ROWS + 1], np.int64(0), np.int64(0)
        if table[part, _OFFSETS] == 0:
            end = slots
        elif table[part, _OFFSETS + 1] == 4:
            offsets = carray(pointer(table[part, _OFFSETS]), (FAR,), np.uint32)
            begin, end = np.int64(offsets[place * slots]), np.int64(offsets[(place + 1) * slots])
        else:
            wide = carray(pointer(table[part, _OFFSETS]), (FAR,), np.int64)
            begin, end = wide[place * slots], wide[(place + 1) * slots]
        num_ids += end - begin
    return good, num_ids


@njit(cache=True, nogil=True, inline="always")
def _copy_ids(address, width, begin, count, ids, end):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Copy a run of ids of any type to `ids[end:]`."""
    source, last = np.uintp(address) + np.uintp(begin * width), np.uintp(end)
    if width == 4:
        narrow = carray(pointer(source), (FAR,), np.int32)
        for k in range(count):
            ids[last + np.uintp(k)] = narrow[np.uintp(k)]
    elif width == 8:
        wide = carray(pointer(source), (FAR,), np.int64)
        for k in range(count):
            ids[last + np.uintp(k)] = wide[np.uintp(k)]
    elif width == 2:
        short = carray(pointer(source), (FAR,), np.uint16)
        for k in range(count):
            ids[last + np.uintp(k)] = short[np.uintp(k)]
    else:
        tiny = carray(pointer(source), (FAR,), np.uint8)
        for k in range(count):
            ids[last + np.uintp(k)] = tiny[np.uintp(k)]


@njit(cache=True, nogil=True)
def _copy_offsets(
    address: int, width: int, bag: int, num_slots: int, offsets: NDArray[np.int64], at: int, end: int
) -> tuple[Any, Any]:  # pragma: no cover
    """Copy the offsets of a sample's slots to `offsets[at:]`, from `end` on; return its first id and their number."""
    if width == 4:
        narrow = carray(pointer(address), (FAR,), np.uint32)
        begin = np.int64(narrow[bag])
        for slot in range(num_slots):
            offsets[at + slot] = end + np.int64(narrow[bag + slot]) - begin
        return begin, np.int64(narrow[bag + num_slots]) - begin
    wide = carray(pointer(address), (FAR,), np.int64)
    for slot in range(num_slots):
        offsets[at + slot] = end + wide[bag + slot] - wide[bag]
    return wide[bag], wide[bag + num_slots] - wide[bag]


@njit(cache=True, nogil=True, inline="always")
def _copy_numbers(address, width, begin, count, numbers, end):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Copy numbers that are kept as bytes or as they are to `numbers[end:]`."""
    source, last = np.uintp(address) + np.uintp(begin * width), np.uintp(end)
    if width == 1:
        tiny = carray(pointer(source), (FAR,), np.uint8)
        for k in range(count):
            numbers[last + np.uintp(k)] = tiny[np.uintp(k)]
    else:
        real = carray(pointer(source), (FAR,), np.float32)
        for k in range(count):
            numbers[last + np.uintp(k)] = real[np.uintp(k)]


@njit(cache=True, nogil=True)
def fill(
    samples: NDArray[np.int64],
    part_of: NDArray[np.int32],
    places: NDArray[np.int64],
    table: NDArray[np.int64],
    num_slots: int,
    shift: int,
    sample_ids: NDArray[np.int64],
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    num_dense: int,
    dense: NDArray[np.float32],
    num_labels: int,
    labels: NDArray[np.float32],
    weights: NDArray[np.float32],
) -> None:  # pragma: no cover
    """Write samples one after the other; broken ones are left out. `offsets` and `weights` may be empty: not wanted.

    `dense` and `labels` are flat, so many numbers a sample.
    """
    end, row = 0, 0
    for i in range(samples.size):
        part, place = part_of[i], places[i]
        if place < 0:
            continue
        sample_ids[row] = samples[i] + shift
        if table[part, _SAMPLE_IDS]:
            sample_ids[row] = carray(pointer(table[part, _SAMPLE_IDS]), (FAR,), np.int64)[place] + shift
        begin, count = place * num_slots, num_slots
        if table[part, _OFFSETS]:
            address, width = table[part, _OFFSETS], table[part, _OFFSETS + 1]
            begin, count = _copy_offsets(address, width, begin, num_slots, offsets, row * num_slots, end)
        elif offsets.size:
            for slot in range(num_slots):
                offsets[row * num_slots + slot] = end + slot
        _copy_ids(table[part, _IDS], table[part, _IDS + 1], begin, count, ids, end)
        end += count
        _copy_numbers(table[part, _DENSE], 4, place * num_dense, num_dense, dense, row * num_dense)
        address, width = table[part, _LABELS], table[part, _LABELS + 1]
        _copy_numbers(address, width, place * num_labels, num_labels, labels, row * num_labels)
        if weights.size:
            weights[row] = carray(pointer(table[part, _WEIGHTS]), (FAR,), np.float32)[place]
        row += 1
    if offsets.size:
        offsets[row * num_slots] = end


def parts_of(samples: NDArray[np.int64], firsts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which parts, given by their first samples, hold some samples."""
    used = np.zeros(len(firsts), dtype=np.bool_)
    locate(samples, firsts, np.empty(len(samples), dtype=np.int32), used)
    return np.flatnonzero(used)


def assemble(
    samples: NDArray[np.int64],
    parts: Sequence[PackedSamples],
    firsts: NDArray[np.int64],
    *,
    shift: int = 0,
    pin: bool = False,
) -> Batch:
    """Return samples by their numbers, broken ones left out, from the parts that hold them.

    Parts are in the order of their first samples. `shift` is added to the samples' ids. With `pin` the batch is in
    page-locked memory, from which a GPU copies while the CPU goes on.
    """
    num_samples, table = len(samples), np.stack([part.addresses for part in parts])
    part_of, used = np.empty(num_samples, dtype=np.int32), np.zeros(len(parts), dtype=np.bool_)
    locate(samples, firsts, part_of, used)
    places = np.empty(num_samples, dtype=np.int64)
    good, num_ids = measure(samples, part_of, firsts, table, places)
    if good < 0:
        raise DataError("samples were asked for that the data do not have", hint="ask for those that there are")
    model = next((part for part in parts if part.num_samples), parts[0])
    if any(part.shape != model.shape for part in parts if part.num_samples):
        raise DataError(
            "samples of one data set have unlike shapes", hint="give all the same numbers, slots and fields"
        )
    has_offsets = any(part.offsets is not None for part in parts)
    has_weights = model.weights is not None
    sample_ids, ids = _room(good, kind=torch.int64, pin=pin), _room(num_ids, kind=torch.int64, pin=pin)
    dense = _room(good, model.dense.shape[1], kind=torch.float32, pin=pin)
    labels = _room(good, *model.labels.shape[1:], kind=torch.float32, pin=pin)
    weights = _room(good if has_weights else 0, kind=torch.float32, pin=pin)
    slots = model.num_slots
    bags = good * slots + 1
    offsets = _room(bags, kind=torch.int64, pin=pin) if has_offsets else even_offsets(bags, pin)
    fill(
        samples,
        part_of,
        places,
        table,
        slots,
        shift,
        sample_ids.numpy(),
        ids.numpy(),
        offsets.numpy() if has_offsets else _NOTHING,
        dense.shape[1],
        dense.numpy().reshape(-1),
        math.prod(labels.shape[1:]),
        labels.numpy().reshape(-1),
        weights.numpy(),
    )
    return Batch(
        sample_ids=sample_ids,
        dense=dense,
        ids=ids,
        offsets=offsets,
        labels=labels,
        weights=weights if has_weights else None,
        extra={name: _further(name, part_of, places, parts, pin=pin) for name in model.extra},
    )


_NOTHING = np.empty(0, dtype=np.int64)


def _room(*shape: int, kind: torch.dtype, pin: bool) -> Tensor:
    """Return a tensor that is not written yet."""
    return torch.empty(shape, dtype=kind, pin_memory=pin)


def _further(
    name: str, part_of: NDArray[np.int32], places: NDArray[np.int64], parts: Sequence[PackedSamples], *, pin: bool
) -> Tensor:
    """Return a further field of samples; sequences that are shorter than those of other parts get zeros behind."""
    part_of, places = part_of[places >= 0], places[places >= 0]
    arrays = [part.extra[name] if part.num_samples else None for part in parts]
    given = [array for array in arrays if array is not None]
    shape = [max(sizes) for sizes in zip(*(array.shape[1:] for array in given), strict=True)]
    found = np.zeros((len(places), *shape), dtype=np.result_type(*{array.dtype for array in given}))
    for number, array in enumerate(arrays):
        mine = np.flatnonzero(part_of == number)
        if array is not None and mine.size:
            corner: tuple[Any, ...] = tuple(map(slice, array.shape[1:]))
            found[(mine, *corner)] = array[places[mine]]
    tensor = torch.from_numpy(found)
    return tensor.pin_memory() if pin else tensor
