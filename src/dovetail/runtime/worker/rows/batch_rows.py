"""Rows of embedding tables that lie on servers, as tensors that gradients flow back to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dovetail.models.embedding import RowSource
from dovetail.runtime.worker.rows.keys import Keys, LookUp, look_up
from dovetail.runtime.worker.rows.pinned_memory import to_device

Floats = NDArray[np.float32]
Fetch = Callable[[LookUp], Floats | Tensor]
Check = Callable[[Tensor], None]
AheadRows = list[tuple[LookUp, Floats | Tensor]]
"""Rows of look-ups that were known before the model asked for them."""
Limit = tuple[float, float]
"""The most that the norm of a row may be, and which norm: 2 is the length."""


class Leaf:
    """Rows of one look-up, as the model sees them; after the backward pass `tensor.grad` is theirs."""

    def __init__(self, wanted: LookUp, rows: Floats | Tensor, device: torch.device, limit: Limit | None = None) -> None:
        """Make the tensor, of rows no longer than the `limit`."""
        self.wanted, self._kept = wanted, rows
        tensor = rows.to(device) if isinstance(rows, Tensor) else to_device(rows, device)
        if limit is not None:
            tensor = _limited(tensor, *limit)
        self.tensor = tensor.requires_grad_(torch.is_grad_enabled())


class BatchRows:
    """The rows of the micro-batch that is being computed: those fetched ahead, and those fetched when needed."""

    def __init__(self, num_servers: int, device: torch.device) -> None:
        """Start with no micro-batch."""
        self.num_servers, self.device = num_servers, device
        self._ahead: dict[int, AheadRows] = {}
        self._fetch: Fetch | None = None
        self.leaves: list[Leaf] = []
        self._limits: dict[int, Limit] = {}

    def limit(self, table: int, max_norm: float, norm_type: float) -> None:
        """Have rows of a table scaled down, as they are looked up, to a norm; servers do so before they step them."""
        self._limits[table] = (max_norm, norm_type)

    def begin(self, ahead: AheadRows, fetch: Fetch) -> None:
        """Start a micro-batch with rows that are here already; `fetch` gets others."""
        self._ahead = {}
        for wanted, rows in ahead:
            self._ahead.setdefault(wanted.table, []).append((wanted, rows))
        self._fetch, self.leaves = fetch, []

    def source(self, table: int, check: Check = lambda _: None) -> RowSource:
        """Return one table as a model's `row_source`; `check` refuses keys that it has no row for."""
        return RemoteRows(table, self, check)

    def leaf(self, table: int, keys: Tensor) -> Leaf:
        """Return the rows of some keys."""
        waiting = self._ahead.get(table, [])
        found = next((pair for pair in waiting if are_keys(keys, pair[0].asked)), None)
        if found is not None:
            self._ahead[table] = [pair for pair in waiting if pair is not found]
        else:
            if self._fetch is None:
                raise RuntimeError("rows are looked up outside of a micro-batch")
            wanted = look_up(table, _numpy(keys), self.num_servers)
            found = (wanted, self._fetch(wanted))
        leaf = Leaf(*found, self.device, self._limits.get(table))
        self.leaves.append(leaf)
        return leaf


class RemoteRows:
    """One table as a model's `row_source`."""

    def __init__(self, table: int, rows: BatchRows, check: Check) -> None:
        """Keep which table this is, and what refuses keys that it has no row for."""
        self._table, self._rows, self._check = table, rows, check

    def _leaf(self, keys: Tensor) -> Leaf:
        """Return the rows of some keys, all of which the table has."""
        self._check(keys)
        return self._rows.leaf(self._table, keys)

    def look_up(self, keys: Tensor, offsets: Tensor, mode: str) -> Tensor:
        """Return one pooled vector a bag."""
        leaf = self._leaf(keys)
        if leaf.tensor.device.type == "cpu":
            pooled: Tensor = _Pool.apply(leaf.tensor, leaf.wanted.places, _numpy(offsets), mode == "mean")  # type: ignore[no-untyped-call]
            return pooled
        places = to_device(leaf.wanted.places, leaf.tensor.device).long()
        return functional.embedding_bag(
            places, leaf.tensor, offsets.to(leaf.tensor.device), mode=mode, include_last_offset=True
        )

    def rows(self, keys: Tensor) -> Tensor:
        """Return one vector a key, whatever the shape of `keys`."""
        leaf = self._leaf(keys.reshape(-1))
        places = to_device(leaf.wanted.places, leaf.tensor.device).long()
        return functional.embedding(places.view(keys.shape), leaf.tensor)


class _Pool(torch.autograd.Function):
    """Bags of rows, summed or averaged, in host memory."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: NDArray[np.int32], offsets: Keys, mean: bool) -> Tensor:
        """Return one vector a bag."""
        ctx.places, ctx.offsets, ctx.mean, ctx.shape = places, offsets, mean, rows.shape
        pooled = np.empty((len(offsets) - 1, rows.shape[1]), dtype=np.float32)
        pool(rows.detach().numpy(), places, offsets, mean, pooled)
        return torch.from_numpy(pooled)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the sum of the gradients of each row."""
        sums = np.zeros(ctx.shape, dtype=np.float32)
        spread(gradients[0].contiguous().numpy(), ctx.places, ctx.offsets, ctx.mean, sums)
        return torch.from_numpy(sums), None, None, None


@njit(cache=True, nogil=True, error_model="numpy")
def pool(rows, places, offsets, mean, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the sum, or the mean, of the rows of each bag."""
    width = rows.shape[1]
    for bag in range(len(offsets) - 1):
        begin, end = offsets[bag], offsets[bag + 1]
        if end == begin + 1:
            row = rows[places[begin]]
            for j in range(width):
                out[bag, j] = row[j]
            continue
        for j in range(width):
            out[bag, j] = np.float32(0)
        for i in range(begin, end):
            row = rows[places[i]]
            for j in range(width):
                out[bag, j] += row[j]
        if mean and end > begin:
            for j in range(width):
                out[bag, j] /= np.float32(end - begin)


@njit(cache=True, nogil=True, error_model="numpy")
def spread(gradients, places, offsets, mean, sums):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add the gradient of each bag to the sums of its rows."""
    width = sums.shape[1]
    for bag in range(len(offsets) - 1):
        gradient = gradients[bag]
        share = np.float32(1)
        if mean and offsets[bag + 1] > offsets[bag]:
            share = np.float32(1) / np.float32(offsets[bag + 1] - offsets[bag])
        for i in range(offsets[bag], offsets[bag + 1]):
            total = sums[places[i]]
            for j in range(width):
                total[j] += share * gradient[j]


def _limited(rows: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Return rows that are scaled down where their norm is above a limit, as `torch.embedding_renorm_` does."""
    norms = torch.linalg.vector_norm(rows, norm_type, dim=1, keepdim=True)
    return rows * torch.where(norms > max_norm, max_norm / (norms + 1e-7), 1.0)


def are_keys(keys: Tensor, asked: Keys) -> bool:
    """Say whether keys are those that were asked for; on a GPU, without bringing them back."""
    if keys.numel() != len(asked):
        return False
    if keys.is_cuda:
        return torch.equal(keys.long(), to_device(asked, keys.device))
    return np.array_equal(_numpy(keys), asked)


def _numpy(tensor: Tensor) -> Keys:
    """Return a tensor of keys or offsets as int64 numbers in host memory."""
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.int64).numpy())
