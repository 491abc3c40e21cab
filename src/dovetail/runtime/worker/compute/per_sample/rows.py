"""Looked-up rows with gradients of single samples: what a look-up gives is a leaf, and each vector is one sample's.

A sample may look a row up several times, in one bag, in several, or by several layers that share a table: its gradients
for one row are added up before their norm is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor, nn

from dovetail.models.embedding import RowSource
from dovetail.runtime.worker.compute.per_sample.layers import NotBySample, Watch
from dovetail.runtime.worker.rows.batch_rows import AheadRows, BatchRows, Check, Fetch, Floats, pool, spread
from dovetail.runtime.worker.rows.keys import Keys, LookUp, look_up
from dovetail.runtime.worker.tasks.task import RowGradients


@dataclass(slots=True, eq=False)
class Vectors:
    """What one look-up gave: a vector a bag, in the order of the bags."""

    wanted: LookUp
    leaf: Tensor
    offsets: Keys
    mean: bool
    samples: NDArray[np.int64] | None = None
    """Whose each vector is; None: not known."""

    @property
    def gradient(self) -> Floats | None:
        """The gradient of each vector; None where the loss depends on none."""
        return None if self.leaf.grad is None else self.leaf.grad.contiguous().numpy()


class SampleRows(BatchRows):
    """The rows of the micro-batch that is being computed, in host memory, with whose each looked-up vector is."""

    def __init__(self, num_servers: int) -> None:
        """Start with no micro-batch."""
        super().__init__(num_servers, torch.device("cpu"))
        self.found: list[Vectors] = []
        self._known: dict[int, list[tuple[LookUp, Floats]]] = {}
        """Rows of the micro-batch that are here, by table."""
        self._sorted: dict[int, tuple[Keys, Floats]] = {}
        self._is_part = False

    def begin(self, ahead: AheadRows, fetch: Fetch) -> None:
        """Start a micro-batch with rows that are here already; `fetch` gets others."""
        super().begin(ahead, fetch)
        self.found, self._known, self._sorted, self._is_part = [], {}, {}, False
        for wanted, rows in ahead:
            self._known.setdefault(wanted.table, []).append((wanted, np.asarray(rows)))

    def begin_part(self) -> None:
        """Start some samples of the micro-batch, which look up what it has looked up."""
        self.found, self._is_part = [], True

    def _leaf(self, table: int, keys: Tensor) -> tuple[LookUp, Floats]:
        """Return distinct rows of some keys."""
        if not self._is_part:
            leaf = self.leaf(table, keys)
            rows = leaf.tensor.detach().numpy()
            if not any(wanted is leaf.wanted for wanted, _ in self._known.get(table, [])):
                self._known.setdefault(table, []).append((leaf.wanted, rows))
            return leaf.wanted, rows
        wanted = look_up(table, np.ascontiguousarray(keys.detach().to(torch.int64).numpy()), self.num_servers)
        known, rows = self._all_known(table)
        places = np.searchsorted(known, wanted.keys)
        if len(wanted.keys) and (not len(known) or (known[places.clip(max=len(known) - 1)] != wanted.keys).any()):
            if self._fetch is None:
                raise RuntimeError("rows are looked up outside of a micro-batch")
            return wanted, np.asarray(self._fetch(wanted))
        return wanted, rows[places]

    def _all_known(self, table: int) -> tuple[Keys, Floats]:
        """Return the rows of a table that are here, by their keys, which rise."""
        if table not in self._sorted:
            known = self._known.get(table, [])
            if not known:
                return np.empty(0, dtype=np.int64), np.empty((0, 0), dtype=np.float32)
            keys, first = np.unique(np.concatenate([wanted.keys for wanted, _ in known]), return_index=True)
            self._sorted[table] = keys, np.concatenate([rows for _, rows in known])[first]
        return self._sorted[table]

    def source(self, table: int, check: Check = lambda _: None) -> RowSource:
        """Return one table as a model's `row_source`; `check` refuses keys that it has no row for."""
        return _Source(table, self, check)

    def look_up(self, table: int, keys: Tensor, offsets: Keys, *, mean: bool) -> Tensor:
        """Return one vector a bag, that gradients stop at."""
        wanted, rows = self._leaf(table, keys)
        vectors = torch.empty(len(offsets) - 1, rows.shape[1])
        pool(rows, wanted.places, offsets, mean, vectors.numpy())
        if torch.is_grad_enabled():
            self.found.append(Vectors(wanted, vectors.requires_grad_(), offsets, mean))
        return vectors


class _Source:
    """One table as a model's `row_source`."""

    def __init__(self, table: int, rows: SampleRows, check: Check) -> None:
        """Keep which table this is, and what refuses keys that it has no row for."""
        self._table, self._rows, self._check = table, rows, check

    def look_up(self, keys: Tensor, offsets: Tensor, mode: str) -> Tensor:
        """Return one pooled vector a bag."""
        self._check(keys)
        bags = np.ascontiguousarray(offsets.detach().to(torch.int64).numpy())
        return self._rows.look_up(self._table, keys, bags, mean=mode == "mean")

    def rows(self, keys: Tensor) -> Tensor:
        """Return one vector a key, whatever the shape of `keys`."""
        flat = keys.reshape(-1)
        self._check(flat)
        vectors = self._rows.look_up(self._table, flat, np.arange(len(flat) + 1, dtype=np.int64), mean=False)
        return vectors.view(*keys.shape, vectors.shape[1])


def watch_table(layer: nn.Module, rows: SampleRows, watch: Watch) -> None:
    """Have a layer whose rows come from `rows` say whose each vector is that it looks up.

    What the layer answers has one row a sample. Where that is nothing but the vectors in their order, they are shared
    out evenly; else a pass back through the layer alone tells, by which rows of the answer a vector has a part in.
    """
    original = layer.forward

    def forward(_: nn.Module, *inputs: Any, **named: Any) -> Any:
        before = len(rows.found)
        answer = original(*inputs, **named)
        if watch.is_on and torch.is_grad_enabled():
            for each in rows.found[before:]:
                each.samples = _samples_of(each.leaf, answer, watch.num_samples)
        return answer

    layer.forward = MethodType(forward, layer)


def _samples_of(leaf: Tensor, answer: Any, num_samples: int) -> NDArray[np.int64] | None:
    """Return whose each vector is; None where the answer does not say."""
    if not isinstance(answer, Tensor) or answer.dim() == 0 or len(answer) != num_samples:
        return None
    if not len(leaf):
        return np.empty(0, dtype=np.int64)
    is_same = answer.data_ptr() == leaf.data_ptr() and answer.numel() == leaf.numel() and answer.is_contiguous()
    if is_same and num_samples and not len(leaf) % num_samples:
        return np.repeat(np.arange(num_samples), len(leaf) // num_samples)
    if not answer.requires_grad:
        return None
    weights = torch.rand(answer.shape, generator=torch.Generator().manual_seed(num_samples), dtype=answer.dtype) + 0.5
    number = torch.arange(num_samples, dtype=answer.dtype).view(-1, *[1] * (answer.dim() - 1))
    (ones,) = torch.autograd.grad(answer, leaf, weights, retain_graph=True)
    (numbers,) = torch.autograd.grad(answer, leaf, weights * number, retain_graph=True)
    places = ones.abs().argmax(dim=1, keepdim=True)
    most, its = ones.gather(1, places), numbers.gather(1, places)
    samples = torch.where(most == 0, 0.0, its / torch.where(most == 0, 1.0, most)).round()
    slack = 1e-4 * (ones.abs() * num_samples + most.abs())
    if bool(((numbers - samples * ones).abs() > slack).any()):
        raise NotBySample("a layer has rows of several samples in what it answers for one")
    return samples.squeeze(1).long().numpy()


def add_squares(found: Sequence[Vectors], squares: NDArray[np.float64]) -> None:
    """Add the square of the norm of each sample's gradient for all rows that it looked up."""
    by_table: dict[int, list[Vectors]] = {}
    for each in found:
        if each.gradient is not None:
            by_table.setdefault(each.wanted.table, []).append(each)
    for several in by_table.values():
        if any(each.samples is None for each in several):
            raise NotBySample("rows are looked up outside of a layer that answers one row a sample")
        samples = np.concatenate([each.samples for each in several if each.samples is not None])
        gradients = np.concatenate([each.gradient for each in several if each.gradient is not None])
        numbers = _numbers(several)
        ends = np.cumsum([0, *(len(each.wanted.asked) for each in several)])
        begins = np.concatenate([each.offsets[:-1] + end for each, end in zip(several, ends, strict=False)])
        lengths = np.concatenate([np.diff(each.offsets) for each in several])
        shares = np.concatenate([_shares(each) for each in several])
        order = np.argsort(samples, kind="stable")
        most = int(np.bincount(samples, lengths).max()) if len(samples) else 0
        add_row_squares(
            gradients,
            samples[order],
            order,
            begins,
            lengths,
            shares,
            numbers,
            np.full(int(numbers.max(initial=-1)) + 1, -1, dtype=np.int64),
            np.empty(int(numbers.max(initial=-1)) + 1, dtype=np.int64),
            np.empty((most, gradients.shape[1]), dtype=np.float32),
            squares,
        )


def _numbers(several: Sequence[Vectors]) -> NDArray[np.int64]:
    """Return a number for every key that was looked up, the same for the same key of a table."""
    if len(several) == 1:
        return several[0].wanted.places.astype(np.int64)
    _, places = np.unique(np.concatenate([each.wanted.keys for each in several]), return_inverse=True)
    ends = np.cumsum([0, *(len(each.wanted.keys) for each in several)])
    return np.concatenate([places[end + each.wanted.places] for each, end in zip(several, ends, strict=False)])


def _shares(each: Vectors) -> Floats:
    """Return by what a bag's gradient is multiplied for each of its keys."""
    lengths = np.diff(each.offsets)
    if not each.mean:
        return np.ones(len(lengths), dtype=np.float32)
    return np.float32(1) / np.maximum(lengths, 1).astype(np.float32)


@njit(cache=True, nogil=True, error_model="numpy")
def add_row_squares(  # type: ignore[no-untyped-def]  # pragma: no cover
    gradients, samples, order, begins, lengths, shares, numbers, owner, at, sums, squares
):
    """Add, sample by sample, the squares of its rows' gradients; vectors come in the order of their samples."""
    width = gradients.shape[1]
    count = 0
    for i in range(len(order)):
        sample, vector = samples[i], order[i]
        share = shares[vector]
        for key in range(begins[vector], begins[vector] + lengths[vector]):
            row = numbers[key]
            if owner[row] != sample:
                owner[row], at[row] = sample, count
                for j in range(width):
                    sums[count, j] = share * gradients[vector, j]
                count += 1
            else:
                total = sums[at[row]]
                for j in range(width):
                    total[j] += share * gradients[vector, j]
        if i + 1 == len(order) or samples[i + 1] != sample:
            square = 0.0
            for place in range(count):
                for j in range(width):
                    square += np.float64(sums[place, j]) * np.float64(sums[place, j])
            squares[sample] += square
            count = 0


def summed(found: Sequence[Vectors], factors: Floats) -> RowGradients:
    """Return the gradients of rows, those of each sample times its factor."""
    gradients: RowGradients = []
    for each in found:
        if (gradient := each.gradient) is None:
            continue
        scaled = gradient * factors[each.samples][:, None]
        sums = np.zeros((len(each.wanted.keys), scaled.shape[1]), dtype=np.float32)
        spread(scaled, each.wanted.places, each.offsets, each.mean, sums)
        gradients.append((each.wanted, sums))
    return gradients


def joined(gradients: RowGradients, num_servers: int) -> RowGradients:
    """Return the gradients of many small look-ups as those of one a table."""
    by_table: dict[int, RowGradients] = {}
    for wanted, values in gradients:
        by_table.setdefault(wanted.table, []).append((wanted, values))
    found: RowGradients = []
    for table, mine in by_table.items():
        wanted = look_up(table, np.concatenate([each.keys for each, _ in mine]), num_servers)
        sums = np.zeros((len(wanted.keys), mine[0][1].shape[1]), dtype=np.float32)
        np.add.at(sums, wanted.places, np.concatenate([values for _, values in mine]))
        found.append((wanted, sums))
    return found
