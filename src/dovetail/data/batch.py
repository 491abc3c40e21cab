"""Samples side by side, as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields

import torch
from torch import Tensor

from dovetail.data.errors import DataError

FIELDS = ("sample_ids", "dense", "ids", "offsets", "labels", "weights")
"""What a layer can read from a batch, by name; `weights` is None where all samples count alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """`n` samples of `d` numbers and `s` slots.

    Ids lie sample by sample, and slot by slot within a sample: those of slot `j` of sample `i` are
    `ids[offsets[i * s + j] : offsets[i * s + j + 1]]`. A run of samples is therefore a run of ids.
    """

    sample_ids: Tensor
    """int64 [n]: which samples these are; all randomness that belongs to a sample is drawn from its id."""
    dense: Tensor
    """float32 [n, d]."""
    ids: Tensor
    """int64 [number of ids]: keys of embedding rows, unlike for unlike slots."""
    offsets: Tensor
    """int64 [n * s + 1], from 0 up to the number of ids."""
    labels: Tensor
    """float32 [n], or [n, ...] where a sample has several; classes are 0, 1, 2, ..."""
    weights: Tensor | None = None
    """float32 [n]: how much each sample counts; None where each counts 1."""
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """Further fields by name, one row a sample, of any kind and shape: `batch.pixels` is `batch.extra["pixels"]`."""

    def __post_init__(self) -> None:
        """Refuse what is no tensor, and tensors that do not describe the same samples."""
        if not self._is_plain():
            self._check()

    def _is_plain(self) -> bool:
        """Say, at the least price, whether nothing is wrong with a batch of the usual kind."""
        try:
            num_samples = len(self.sample_ids)
            return (
                not self.extra
                and self.weights is None
                and self.sample_ids.dtype == self.ids.dtype == self.offsets.dtype == torch.int64
                and self.dense.dtype == self.labels.dtype == torch.float32
                and self.sample_ids.dim() == self.ids.dim() == self.offsets.dim() == 1
                and self.dense.dim() == 2
                and len(self.dense) == len(self.labels) == num_samples > 0
                and (len(self.offsets) - 1) % num_samples == 0
                and len(self.offsets) > 0
            )
        except (AttributeError, TypeError):
            return False

    def _check(self) -> None:
        """Say what is wrong."""
        for name, tensor in {**self.present(), **self.extra}.items():
            if not isinstance(tensor, Tensor):
                raise DataError(
                    f"a batch has `{name}` as {type(tensor).__name__}, expected a tensor",
                    hint="torch.from_numpy turns an array into one",
                )
        num_samples = self.sample_ids.shape[0]
        expected = {
            "sample_ids": (torch.int64, 1),
            "dense": (torch.float32, 2),
            "ids": (torch.int64, 1),
            "offsets": (torch.int64, 1),
            "labels": (torch.float32, max(1, self.labels.dim())),
            "weights": (torch.float32, 1),
        }
        for name, tensor in self.present().items():
            dtype, num_dims = expected[name]
            if tensor.dtype != dtype or tensor.dim() != num_dims:
                raise DataError(
                    f"a batch has `{name}` of {str(tensor.dtype).removeprefix('torch.')} in {tensor.dim()} dimensions, "
                    f"expected {str(dtype).removeprefix('torch.')} in {num_dims}",
                    hint="see dovetail.data.Batch for the shape of every field",
                )
        for name, tensor in self.present().items():
            if name in ("dense", "labels", "weights") and tensor.shape[0] != num_samples:
                raise DataError(
                    f"a batch of {num_samples} samples has {tensor.shape[0]} rows of `{name}`",
                    hint="`sample_ids`, `dense`, `labels` and `weights` have one row a sample",
                )
        for name, tensor in self.extra.items():
            if name in FIELDS or name == "extra" or tensor.dim() < 1 or tensor.shape[0] != num_samples:
                raise DataError(
                    f"a batch of {num_samples} samples has a further field `{name}` of shape {list(tensor.shape)}",
                    hint=f"further fields have one row a sample, and other names than {', '.join(FIELDS)}",
                )
        bags = self.offsets.shape[0] - 1
        if bags < 0 or (num_samples and bags % num_samples) or (not num_samples and bags):
            raise DataError(
                f"a batch of {num_samples} samples has {bags + 1} offsets, not a whole number of slots a sample",
                hint="`offsets` has one entry for every slot of every sample, and the number of ids last",
            )

    def __getattr__(self, name: str) -> Tensor:
        """Return a further field."""
        extra: Mapping[str, Tensor] = object.__getattribute__(self, "extra") if not name.startswith("__") else {}
        if name not in extra:
            raise AttributeError(f"a batch has no field `{name}`: it has {', '.join([*FIELDS, *extra])}")
        return extra[name]

    @property
    def num_samples(self) -> int:
        """How many samples there are."""
        return self.sample_ids.shape[0]

    @property
    def num_slots(self) -> int:
        """How many slots a sample has; 0 where there are no samples."""
        return (self.offsets.shape[0] - 1) // self.num_samples if self.num_samples else 0

    @property
    def num_bytes(self) -> int:
        """What the tensors take."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())

    def present(self) -> dict[str, Tensor]:
        """Return the fields that there are, by name, in the order of `FIELDS`."""
        return {name: tensor for name in FIELDS if (tensor := getattr(self, name)) is not None}

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors in the order of `FIELDS`, then further ones."""
        return (*self.present().values(), *self.extra.values())

    def slice(self, first: int, last: int) -> Batch:
        """Return the samples at positions `first` up to but not including `last`, without copying ids."""
        slots = self.num_slots
        offsets = self.offsets[first * slots : last * slots + 1]
        begin, end = (int(offsets[0]), int(offsets[-1]))
        return Batch(
            sample_ids=self.sample_ids[first:last],
            dense=self.dense[first:last],
            ids=self.ids[begin:end],
            offsets=offsets - begin,
            labels=self.labels[first:last],
            weights=None if self.weights is None else self.weights[first:last],
            extra={name: tensor[first:last] for name, tensor in self.extra.items()},
        )

    def split(self, size: int) -> list[Batch]:
        """Return the samples as batches of a size, the last maybe smaller, without copying; cheaper than slices."""
        slots, total = self.num_slots, self.num_samples
        if self.weights is not None or self.extra or len(self.ids) != total * slots or not self._has_even_offsets():
            return [self.slice(first, min(first + size, total)) for first in range(0, total, size)]
        columns = [each.split(size) for each in (self.sample_ids, self.dense, self.labels)]  # type: ignore[no-untyped-call]
        ids = self.ids.split(size * slots) if slots else [self.ids] * len(columns[0])  # type: ignore[no-untyped-call]
        whole, found, set_field = self.offsets[: size * slots + 1], [], object.__setattr__
        for numbers, dense, labels, own in zip(*columns, ids, strict=True):
            batch = object.__new__(Batch)  # a part of what was checked needs no checks
            set_field(batch, "sample_ids", numbers)
            set_field(batch, "dense", dense)
            set_field(batch, "ids", own)
            set_field(batch, "offsets", whole if len(numbers) == size else whole[: len(numbers) * slots + 1])
            set_field(batch, "labels", labels)
            set_field(batch, "weights", None)
            set_field(batch, "extra", {})
            found.append(batch)
        return found

    def _has_even_offsets(self) -> bool:
        """Say whether every bag has one id."""
        return any(self.offsets is each for each in _EVEN.values()) or bool((self.offsets.diff() == 1).all())

    def take(self, positions: Tensor) -> Batch:
        """Return the samples at `positions` (int64), in that order; the batch is in host memory."""
        if positions.numel() and not 0 <= int(positions.min()) <= int(positions.max()) < self.num_samples:
            raise DataError(
                f"a batch of {self.num_samples} samples has none at {int(positions.min())} or {int(positions.max())}",
                hint="positions go from 0 up to the number of samples, which is none itself",
            )
        from dovetail.data.picking import pick  # noqa: PLC0415 - compiles, and only who shuffles needs it

        ids, offsets, dense = pick(
            self.ids.numpy(), self.offsets.numpy(), self.dense.numpy(), self.num_slots, positions.numpy()
        )
        return Batch(
            sample_ids=self.sample_ids[positions],
            dense=torch.from_numpy(dense),
            ids=torch.from_numpy(ids),
            offsets=torch.from_numpy(offsets),
            labels=self.labels[positions],
            weights=None if self.weights is None else self.weights[positions],
            extra={name: tensor[positions] for name, tensor in self.extra.items()},
        )

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Return the batch on `device`."""
        moved = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.present().items()}
        extra = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.extra.items()}
        return Batch(**moved, extra=extra)

    def pinned(self) -> Batch:
        """Return the batch in page-locked memory, from which a GPU copies while the CPU goes on."""
        extra = {name: tensor.pin_memory() for name, tensor in self.extra.items()}
        return Batch(**{name: tensor.pin_memory() for name, tensor in self.present().items()}, extra=extra)

    def with_sample_ids(self, sample_ids: Tensor) -> Batch:
        """Return the same samples under other ids."""
        return replace(self, sample_ids=sample_ids)


_EVEN: dict[tuple[int, bool], Tensor] = {}
_MOST_EVEN = 4


def even_offsets(count: int, pin: bool) -> Tensor:
    """Return the offsets of slots of one id each, which all batches of a size have in common."""
    global _EVEN  # noqa: PLW0603 - replaced as a whole: several threads read
    found = _EVEN.get((count, pin))
    if found is None:
        found = torch.arange(count)
        found = found.pin_memory() if pin else found
        _EVEN = {**dict(list(_EVEN.items())[1 - _MOST_EVEN :]), (count, pin): found}
    return found


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Return the samples of several batches as one."""
    if len(batches) == 1:
        return batches[0]
    widths = {batch.num_slots for batch in batches if batch.num_samples}
    if len(widths) > 1:
        raise DataError(
            f"batches of {' and '.join(str(width) for width in sorted(widths))} slots cannot be joined",
            hint="samples of one data set have the same slots",
        )
    shifts, total = [], 0
    for batch in batches:
        shifts.append(batch.offsets[:-1] + total)
        total += batch.ids.shape[0]
    fields = batches[0].present()
    if any(batch.present().keys() != fields.keys() for batch in batches):
        raise DataError(
            "batches with and without weights cannot be joined", hint="give all samples of a data set weights, or none"
        )
    if any(batch.extra.keys() != batches[0].extra.keys() for batch in batches if batch.num_samples):
        raise DataError("batches of other further fields cannot be joined", hint="samples of one data set are alike")
    joined = {name: torch.cat([getattr(batch, name) for batch in batches]) for name in fields if name != "offsets"}
    end = torch.tensor([total], dtype=torch.int64, device=batches[0].offsets.device)
    full = [batch for batch in batches if batch.num_samples] or batches[:1]
    extra = {name: padded_cat([batch.extra[name] for batch in full]) for name in full[0].extra}
    return Batch(offsets=torch.cat([*shifts, end]), **joined, extra=extra)


def padded_cat(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors one below the other; shorter ones, such as sequences of other batches, get zeros behind."""
    lengths = {tensor.shape[1:] for tensor in tensors}
    if len(lengths) == 1:
        return torch.cat(list(tensors))
    longest = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    whole = tensors[0].new_zeros(sum(tensor.shape[0] for tensor in tensors), *longest)
    begin = 0
    for tensor in tensors:
        whole[(slice(begin, begin + tensor.shape[0]), *map(slice, tensor.shape[1:]))] = tensor
        begin += tensor.shape[0]
    return whole


if tuple(each.name for each in dataclass_fields(Batch)) != (*FIELDS, "extra"):
    raise TypeError("FIELDS must name the fields of Batch in their order")
