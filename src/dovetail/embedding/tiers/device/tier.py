"""The device tier: rows in the memory of a GPU, and an index beside them that finds them there.

A slot has a row (values, then optimizer state), its key, when and how often it was looked up, whether it differs from
the last checkpoint, and the last batch known to need it. The index has one int32 an entry, a slot; keys are compared at
the slots. Entries of rows that went are marked, and when many are, the index is made again.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.embedding.errors import TableError
from dovetail.embedding.places import MOST_DEVICE_SLOTS
from dovetail.embedding.row_metadata import SAVED
from dovetail.embedding.tiers.device import torch_kernels
from dovetail.embedding.tiers.device.budget import INDEX_ENTRIES_A_SLOT, rows_in, slot_bytes
from dovetail.embedding.tiers.device.streams import find_device
from dovetail.embedding.tiers.tier import MetadataAbove, SlottedTier
from dovetail.units import format_bytes

FULLEST = 0.65
"""The index is made again when more than this fraction is taken or marked: all wait for the longest of many probes."""
FREE = -1
"""What `needed` says of a slot without a row."""
NEVER_SEEN = -1
"""What `seen` says of a row that was made for a batch to come."""
_AGES = 2**20
"""Of rows looked up equally often the oldest goes first; so many steps are told apart."""
_NEVER = 2**31 - 1
"""The worth of a slot that may not go."""
WINDOW_SHIFT, SMALLEST_WINDOW = 4, 65_536
"""Victims are the least worth of a 16th of all slots, one 16th after the other: looking at all of them takes long."""


class DeviceTier(SlottedTier):
    """Up to `capacity` rows on a device."""

    def __init__(self, device: torch.device, row_width: int, *, device_bytes: int, device_rows: int | None) -> None:
        """Take the memory; on CUDA all of it at once."""
        self.device, self.row_width, self.device_bytes = device, row_width, device_bytes
        self.slot_bytes = slot_bytes(row_width)
        capacity = min(rows_in(device_bytes, row_width), MOST_DEVICE_SLOTS - 1)
        if device_rows is not None:
            capacity = min(capacity, device_rows)
        if capacity < 1:
            raise TableError(
                f"device_bytes = {device_bytes} has no room for a row of {self.slot_bytes} bytes",
                hint=f"give at least {2 * self.slot_bytes}",
            )
        self.kernels = kernels_for(device)
        try:
            self._make(capacity + 1)  # the last slot is never a row's
        except torch.OutOfMemoryError:
            raise TableError(
                f"the device has no {format_bytes(device_bytes)} left for rows",
                hint="give a smaller device_bytes, or free the device's memory",
            ) from None
        super().__init__(capacity, np.empty(capacity, dtype=np.int32))
        self._num_marked = self._hand = 0
        self.generation = 0
        """Another number once rows were taken out that batches may have counted on."""

    @classmethod
    def on(cls, device: str, row_width: int, *, device_bytes: int, device_rows: int | None) -> Self:
        """Make a tier on the device of a name, which there must be."""
        return cls(find_device(device), row_width, device_bytes=device_bytes, device_rows=device_rows)

    def _make(self, size: int) -> None:
        def numbers(dtype: torch.dtype, fill: int) -> Tensor:
            return torch.full((size,), fill, dtype=dtype, device=self.device)

        self.rows = torch.zeros((size, self.row_width), dtype=torch.float32, device=self.device)
        self.keys, self.needed = numbers(torch.int64, 0), numbers(torch.int32, FREE)
        self.seen, self.counts = numbers(torch.int32, 0), numbers(torch.int16, 0)
        self.states = numbers(torch.int8, SAVED)
        self.index = torch.zeros(size * INDEX_ENTRIES_A_SLOT + 2, dtype=torch.int32, device=self.device)

    @property
    def nowhere(self) -> int:
        """Return the slot that is never a row's."""
        return self.capacity

    @property
    def used_bytes(self) -> int:
        """Return the bytes of the device that the rows take."""
        return self.num_rows * self.slot_bytes

    @property
    def memory_bytes(self) -> int:
        """Return the RAM of the host that the list of free slots takes."""
        return self._free.nbytes

    # -- slots -----------------------------------------------------------------------------------------------------

    def begin(self, keys: Tensor, slots: Tensor, *, missing: Tensor, into: Tensor) -> None:
        """Say whose rows will lie at slots; they are not seen yet.

        `missing` says which distinct keys of a search they are and which batch needs each last; `into` gets the slots.
        """
        self._renew_index(len(slots))
        known = self.needed, self.seen, self.counts, self.states
        self.kernels.settle(self.index, self.keys, *known, into, keys, missing, slots, NEVER_SEEN)

    def let_go(self, slots: Tensor, numbers: NDArray[np.int32]) -> None:
        """Take rows out, given their slots on the device and here."""
        self.kernels.erase(self.index, self.keys, slots)
        self.needed[slots.long()] = FREE
        self.give_back(numbers)
        self._num_marked += len(numbers)

    def _renew_index(self, num_new: int) -> None:
        """Make the index again where marks of rows that went would fill it."""
        if self._num_marked and self.num_rows + self._num_marked + num_new > FULLEST * (len(self.index) - 1):
            self.index.zero_()
            taken = (self.needed >= 0).nonzero().squeeze(1).to(torch.int32)
            self.kernels.insert(self.index, self.keys, taken)
            self._num_marked = 0

    # -- who goes --------------------------------------------------------------------------------------------------

    def victims(self, wanted: int, *, oldest: int, step: int) -> Tensor:
        """Return up to `wanted` slots that no batch from `oldest` on needs: the least counted, of equals the oldest.

        They are the least worth of a part of all slots; the next ones come from the next part.
        """
        window = max(SMALLEST_WINDOW, self.top >> WINDOW_SHIFT, 4 * wanted)
        chosen: list[Tensor] = []
        begin = self._hand if self._hand < self.top else 0
        looked_at = count = 0
        while looked_at < self.top and count < wanted:
            end = min(self.top, begin + window, begin + self.top - looked_at)
            found = self._least_worth(begin, end, wanted - count, oldest=oldest, step=step)
            chosen.append(found)
            looked_at, count = looked_at + end - begin, count + len(found)
            begin = end if end < self.top else 0
        self._hand = begin
        return torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int32, device=self.device)

    def _least_worth(self, begin: int, end: int, wanted: int, *, oldest: int, step: int) -> Tensor:
        """Return up to `wanted` slots from `begin` to `end` that may go."""
        part = slice(begin, end)
        needed = self.needed[part]
        age = (step - self.seen[part]).clamp_(0, _AGES - 1)
        worth = (self.counts[part].to(torch.int32) * _AGES).sub_(age).add_(_AGES)
        worth.masked_fill_((needed < 0) | (needed >= oldest), _NEVER)
        ordered, order = torch.sort(worth)
        num_may_go = int((ordered[:wanted] < _NEVER).sum())
        return order[:num_may_go].to(torch.int32).add_(begin)

    def announced(self) -> Tensor:
        """Return the slots of rows that were made for batches to come and were never seen."""
        found = (self.needed[: self.top] >= 0) & (self.seen[: self.top] == NEVER_SEEN)
        return found.nonzero().squeeze(1).to(torch.int32)

    # -- rows in host memory: what every tier can do ---------------------------------------------------------------

    def write_from(
        self, keys: NDArray[np.int64], rows: NDArray[np.float32], at: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Keep rows, and return the slot of each."""
        numbers = self.take(len(keys))
        slots = torch.from_numpy(numbers).to(self.device)
        self.rows[slots.long()] = torch.from_numpy(rows[at]).to(self.device)
        # No search asked for them, no batch needs them.
        nobody = torch.zeros((2, len(keys)), dtype=torch.int32, device=self.device)
        self.begin(torch.from_numpy(keys).to(self.device), slots, missing=nobody, into=slots.clone())
        return numbers

    def read_into(
        self, keys: NDArray[np.int64], numbers: NDArray[np.int32], rows: NDArray[np.float32], at: NDArray[np.int32]
    ) -> None:
        """Copy the rows at slots to `rows`."""
        rows[at] = self.rows[self._where(numbers)].cpu().numpy()

    def release(self, numbers: NDArray[np.int32]) -> None:
        """Free slots, whoever may have counted on their rows."""
        self.generation += 1
        self.let_go(torch.from_numpy(numbers).to(self.device), numbers)

    def metadata_at(self, numbers: NDArray[np.int32]) -> MetadataAbove:
        """Return what is known of the rows at slots."""
        where = self._where(numbers)
        return MetadataAbove(
            self.keys[where].cpu().numpy(),
            numbers,
            *(each[where].to(torch.int32).cpu().numpy() for each in (self.seen, self.counts, self.states)),
        )

    def taken(self) -> NDArray[np.int32]:
        """Return all slots that have a row."""
        taken: NDArray[np.int32] = (self.needed[: self.top] >= 0).nonzero().squeeze(1).to(torch.int32).cpu().numpy()
        return taken

    def mark_saved(self, numbers: NDArray[np.int32]) -> None:
        """Say that rows are as in the last checkpoint."""
        self.states[self._where(numbers)] = SAVED

    def age(self) -> None:
        """Halve all access counts."""
        self.counts >>= 1

    def close(self) -> None:
        """Let go of the memory."""
        self._make(1)
        self.capacity = self.top = self._num_free = 0

    def _where(self, numbers: NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(numbers.astype(np.int64)).to(self.device)


def kernels_for(device: torch.device) -> ModuleType:
    """Return the kernels for a device: in Triton where there is CUDA and Triton, else in torch."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        return importlib.import_module("dovetail.embedding.tiers.device.triton_kernels")
    return torch_kernels
