"""One batch on the device: its values are read there, and its rows stepped there."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from dovetail.embedding.device.plan import DeviceKeys, Places, Plan
from dovetail.embedding.device_tier import DeviceTier
from dovetail.embedding.errors import TableError


class Door(Protocol):
    """What a batch asks of the table whose rows it has."""

    tier: DeviceTier
    width: int
    closed: bool

    def places_of(self, plan: Plan) -> Places:
        """Return where a batch's rows lie now."""
        ...

    def fill_absent(self, keys: DeviceKeys, slots: Tensor, out: Tensor) -> None:
        """Write the first values of keys that have no row."""
        ...

    def step_rows(self, places: Places, order: Tensor, gradients: Tensor) -> None:
        """Sum gradients[order[i]] over the look-ups of each distinct row, and step the rows."""
        ...

    def done_with(self, plan: Plan) -> None:
        """Let a batch go."""
        ...


class DeviceBatch:
    """The rows of one look-up; they stay on the device until they are stepped, or this object goes."""

    def __init__(self, door: Door, plan: Plan) -> None:
        self._door, self._plan = door, plan
        self._bags: Bags | None = None

    @property
    def places(self) -> Places:
        """Return where the rows lie."""
        return self._door.places_of(self._plan)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Return on the device the arrays that were announced with the keys."""
        return self._plan.inputs

    def values(self) -> Tensor:
        """Return the values of each key: float32 [number of keys, width]."""
        tier, width = self._door.tier, self._door.width
        places = self.places
        out = torch.empty((self._plan.num_keys, width), dtype=torch.float32, device=tier.device)
        tier.kernels.gather(tier.rows, places.slots, width, out)
        if not self._plan.insert:
            self._door.fill_absent(self._plan.keys, places.slots, out)
        return out

    def pooled(self, begins: Tensor, ends: Tensor, *, mean: bool) -> Tensor:
        """Return one vector a bag, where bag b is the keys begins[b] to ends[b], one bag after the other."""
        values = self.values()
        self._bags = bags = Bags(begins.to(values.device), ends.to(values.device), len(values), mean)
        out = torch.empty((bags.num_bags, values.shape[1]), dtype=torch.float32, device=values.device)
        at = torch.arange(len(values), dtype=torch.int32, device=values.device)
        self._door.tier.kernels.sum_rows(values, at, bags.starts, values.shape[1], out, bags.num)
        out += 0.0  # as a sum that begins with zero, which is never -0.0
        return out / bags.divisors if mean else out

    def step(self, gradients: Tensor) -> None:
        """Step the rows by the gradients of what was read: one a key, or one a bag; those of equal keys are summed."""
        if self._plan.done is not None:
            raise TableError("a batch is stepped twice", hint="look its keys up again")
        if not self._plan.insert:
            raise TableError("a look-up that makes no rows is stepped", hint="look up with insert=True to train")
        places = self.places
        order = places.order
        gradients = gradients.detach().float().contiguous()
        if self._bags is not None:
            order = self._bags.bag_of[order.long()]
            gradients = gradients / self._bags.divisors if self._bags.mean else gradients
        self._door.step_rows(places, order, gradients)
        self.release()

    def release(self) -> None:
        """Let the rows go without a step."""
        self._door.done_with(self._plan)

    def __del__(self) -> None:
        """Let the rows of a batch go that nobody steps."""
        if self._plan.done is None and not self._door.closed:
            self._door.done_with(self._plan)


class Bags:
    """Which keys are pooled together."""

    def __init__(self, begins: Tensor, ends: Tensor, num_keys: int, mean: bool) -> None:
        device = begins.device
        self.num_bags, self.mean = len(begins), mean
        lengths = ends - begins
        self.starts = torch.cat([begins, torch.full((1,), num_keys, device=device)]).to(torch.int32)
        self.bag_of = torch.repeat_interleave(
            torch.arange(self.num_bags, device=device), lengths, output_size=num_keys
        ).to(torch.int32)
        self.divisors = lengths.clamp(min=1).float()[:, None]
        self.num = torch.full((1,), self.num_bags, dtype=torch.int32, device=device)
