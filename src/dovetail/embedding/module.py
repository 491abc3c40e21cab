"""The table as a layer of a PyTorch model: it stands where `nn.EmbeddingBag` stood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dovetail.embedding.arrays import as_bags, in_bag_order
from dovetail.embedding.errors import TableError
from dovetail.embedding.table import Mode, Table

if TYPE_CHECKING:
    from dovetail.embedding.tiers.device.table import DeviceBatch, DeviceTable


class TableEmbedding(nn.Module):
    """Pooled vectors of the slots `first_slot` to `last_slot` (exclusive) of `num_slots`, from a table.

    In training, a backward pass steps the rows at once by the table's own optimizer, so the rows are no parameters:
    the model's optimizer takes the dense ones, and the table is saved by `table.save`. In evaluation keys without a
    row show their first values and get none.
    """

    def __init__(
        self,
        table: Table,
        *,
        num_slots: int = 1,
        first_slot: int = 0,
        last_slot: int | None = None,
        mode: Mode = "sum",
    ) -> None:
        """Wrap a table, which may serve several layers."""
        super().__init__()
        last_slot = num_slots if last_slot is None else last_slot
        if not 0 <= first_slot < last_slot <= num_slots:
            raise TableError(
                f"an embedding takes slots {first_slot} to {last_slot} of {num_slots}",
                hint="the slots lie within those of the data",
            )
        if mode not in ("sum", "mean"):
            raise TableError(f"an embedding pools by `{mode}`", hint="choose `sum` or `mean`")
        self.table, self.mode = table, mode
        self.num_slots, self.first_slot, self.last_slot = num_slots, first_slot, last_slot
        self._anchor: Tensor
        self.register_buffer("_anchor", torch.zeros(0), persistent=False)

    @property
    def width(self) -> int:
        """Return the values of a row."""
        return self.table.width

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Return the pooled vectors of each sample's slots side by side: float [n, slots * width]."""
        if offsets.dim() != 1 or offsets.shape[0] < 1 or (offsets.shape[0] - 1) % self.num_slots:
            raise TableError(
                f"a batch with offsets of shape {tuple(offsets.shape)} does not have {self.num_slots} slots a sample",
                hint="offsets have one number more than samples times slots",
            )
        if offsets[0] != 0 or offsets[-1] != ids.shape[0] or bool((offsets.diff() < 0).any()):
            raise TableError(
                f"offsets do not divide {ids.shape[0]} ids into bags",
                hint=f"they start with 0, never fall, and end with {ids.shape[0]}",
            )
        begins = offsets[:-1].view(-1, self.num_slots)[:, self.first_slot : self.last_slot].reshape(-1)
        ends = offsets[1:].view(-1, self.num_slots)[:, self.first_slot : self.last_slot].reshape(-1)
        bags = _numpy(ids), _numpy(begins), _numpy(ends)
        if self.last_slot - self.first_slot < self.num_slots:  # the ids of these slots alone
            bags = in_bag_order(*bags)
        return self._pooled(*bags).view(-1, (self.last_slot - self.first_slot) * self.width)

    def look_up(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Return one pooled vector a bag: float [len(offsets) - 1, width]."""
        begins, ends = as_bags(_numpy(offsets), ids.shape[0], self.mode)
        return self._pooled(_numpy(ids), begins, ends)

    def rows(self, ids: Tensor) -> Tensor:
        """Return one vector an id, whatever the shape of `ids`."""
        places = np.arange(ids.numel() + 1, dtype=np.int64)
        return self._pooled(_numpy(ids.reshape(-1)), places[:-1], places[1:]).view(*ids.shape, self.width)

    def _pooled(self, keys: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
        """Return pooled vectors whose gradients step the rows."""
        if self.table.on_device is not None:
            return self._pooled_on_device(self.table.on_device, keys, begins, ends)
        if not (self.training and torch.is_grad_enabled()):
            values = self.table.lookup_bags(keys, begins, ends, mode=self.mode, insert=self.training)
            return torch.from_numpy(values).to(self._anchor.device)
        anchor = self._anchor.detach().requires_grad_()
        pooled: Tensor = _LookUp.apply(anchor, self.table, keys, begins, ends, self.mode)  # type: ignore[no-untyped-call]
        return pooled

    def _pooled_on_device(
        self, rows: DeviceTable, keys: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> Tensor:
        """Do the same where the rows lie on a device."""
        batch = rows.look_up(keys, insert=self.training)
        is_mean, bags = self.mode == "mean", (torch.from_numpy(begins), torch.from_numpy(ends))
        if not (self.training and torch.is_grad_enabled()):
            return batch.pooled(*bags, mean=is_mean).to(self._anchor.device)
        anchor = self._anchor.detach().requires_grad_()
        pooled: Tensor = _LookUpOnDevice.apply(anchor, batch, *bags, is_mean)  # type: ignore[no-untyped-call]
        return pooled

    def extra_repr(self) -> str:
        """Return the sizes, for `print(model)`."""
        return f"width={self.width}, slots={self.first_slot}..{self.last_slot - 1}, mode={self.mode}"


class _LookUp(torch.autograd.Function):
    """A look-up whose backward pass is the table's update."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        table: Table,
        keys: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        mode: Mode,
    ) -> Tensor:
        """Look up; `anchor` has no numbers and is there so that autograd calls `backward`."""
        ctx.table, ctx.keys, ctx.begins, ctx.ends, ctx.mode = table, keys, begins, ends, mode
        return torch.from_numpy(table.lookup_bags(keys, begins, ends, mode=mode)).to(anchor.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Step the rows."""
        gradient = gradients[0].detach().to("cpu", torch.float32).contiguous().numpy()
        ctx.table.update_bags(ctx.keys, ctx.begins, ctx.ends, gradient, mode=ctx.mode)
        return (None,) * 6


class _LookUpOnDevice(torch.autograd.Function):
    """A look-up of rows on a device, whose backward pass steps them there."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, batch: DeviceBatch, begins: Tensor, ends: Tensor, is_mean: bool) -> Tensor:
        """Look up; `anchor` has no numbers and is there so that autograd calls `backward`."""
        ctx.batch = batch
        pooled = batch.pooled(begins, ends, mean=is_mean)
        ctx.rows_are_on = pooled.device
        return pooled.to(anchor.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Step the rows."""
        ctx.batch.step(gradients[0].to(ctx.rows_are_on))
        return (None,) * 5


def _numpy(tensor: Tensor) -> NDArray[np.int64]:
    """Return a tensor of ids or offsets as int64 numbers in host memory."""
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.int64).numpy())
