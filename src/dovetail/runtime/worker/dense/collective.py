"""Sums and copies among the members of one ring, which can be left at any moment; in fewer bits where asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import Tensor

from dovetail.codecs import Codec, codec_of, pack, unpack
from dovetail.data.streams import stream_number
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.dense.coding import exact_places
from dovetail.runtime.worker.links.servers import Abandoned

dist: Any = torch.distributed
"""PyTorch does not list its groups as public, though it documents them."""
TIMEOUT_S = 300.0
"""Of an operation that nobody gave up: the coordinator notices lost members long before."""
LOOK_S = 0.05
"""How often it is seen whether an operation is still wanted; its end itself wakes who waits for it."""

_put_aside: list[Collective] = []
"""Groups that were left with operations under way."""


class Collective:
    """A group of processes, and the memory that its operations work on.

    An operation of Gloo's cannot be called off. One that waits for a member that died goes on until its deadline and
    may still write into its memory, and a group with one under way is not freed before. So operations work on memory of
    their own, and a group that is left with one under way is put aside until that is over.
    """

    def __init__(self, group: Any, like: Tensor, coder: RingCoder | None = None) -> None:
        """Take a group over; sums are of vectors such as `like`, with a coder in fewer bits."""
        self._group, self._coder = group, coder
        self._arrived: list[list[Tensor]] = []
        """The payloads of all members for each part, where there is a coder."""
        self._memory = torch.empty(like.shape, dtype=like.dtype)  # Gloo sums in host memory
        self._under_way: list[Any] = []
        self._parts: list[slice] = []

    def begin_sum(self, vector: Tensor, part: slice) -> None:
        """Begin to sum a part of the vectors of all members; all begin with the same parts in the same order."""
        self._parts.append(part)
        if self._coder is not None:
            payload = self._coder.payload(vector, part)
            self._arrived.append([torch.empty_like(payload) for _ in range(self._group.size())])
            gathering = dist.distributed_c10d.AllgatherOptions()
            gathering.timeout = timedelta(seconds=TIMEOUT_S)
            self._under_way.append(self._group.allgather([self._arrived[-1]], [payload], gathering))
            return
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=TIMEOUT_S)
        self._memory[part].copy_(vector[part])
        self._under_way.append(self._group.allreduce([self._memory[part]], options))

    @property
    def num_begun(self) -> int:
        """Return how many parts are being summed."""
        return len(self._parts)

    def finish_sums(self, vector: Tensor, wanted: Callable[[], bool]) -> None:
        """Wait for all parts that were begun, and write their sums into the vector."""
        self._finish(wanted)
        for number, part in enumerate(self._parts):
            if self._coder is not None:
                self._memory[part].copy_(self._coder.total(self._arrived[number], part))
            vector[part].copy_(self._memory[part])
        self._parts.clear()
        self._arrived.clear()

    def spread(self, tensors: Sequence[Tensor], root: int, wanted: Callable[[], bool]) -> list[Tensor]:
        """Return what the member at `root` has where the others have `tensors`."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        options.timeout = timedelta(seconds=TIMEOUT_S)
        copies = [tensor.detach().cpu().clone() for tensor in tensors]
        for copy in copies:
            self._under_way.append(self._group.broadcast([copy], options))
            self._finish(wanted)
        return copies

    def _finish(self, wanted: Callable[[], bool]) -> None:
        """Wait for everything under way, as long as it is wanted."""
        while self._under_way:
            work = self._under_way[0]
            with suppress(RuntimeError):  # the time is over; or it failed, which is raised below
                work.wait(timedelta(seconds=LOOK_S))
            if work.is_completed():
                self._under_way.pop(0).wait()
            elif not wanted():
                raise Abandoned

    def leave(self) -> None:
        """Go without the group; what is under way is left to itself."""
        if not all(work.is_completed() for work in self._under_way):
            _put_aside.append(self)
        for other in [each for each in _put_aside if all(work.is_completed() for work in each._under_way)]:
            _put_aside.remove(other)


class RingCoder:
    """Turns parts of a member's gradients into payloads, and all members' payloads into their sum.

    Rounding is unbiased and nothing is kept back: there is no state that a ring, which is formed anew so often, could
    lose. A member's bytes are (n - 1) payloads, against 2 (n - 1) / n of the vector itself: n / 2 x bits / 32 times as
    many.
    """

    def __init__(self, codec: Codec, blueprint: Blueprint, offset: int, seed: int) -> None:
        """Sum vectors that begin at `offset` of the dense parameters."""
        self._codec, self._entries, self._offset = codec, blueprint.dense, offset
        self._seed = seed

    def payload(self, vector: Tensor, part: slice) -> Tensor:
        """Return the payload of a part of this member's gradients."""
        self._seed += 1 << 32
        values = vector[part].detach().cpu().numpy()
        exact = self._exact(part)
        packed: NDArray[Any] = pack(values, self._codec, seed=self._seed, exact=exact)
        return torch.from_numpy(packed)

    def total(self, payloads: Sequence[Tensor], part: slice) -> Tensor:
        """Return the sum of all members' gradients, in the order of their ranks: every member finds the same bits."""
        exact, shape = self._exact(part), (part.stop - part.start,)
        total = np.zeros(shape, dtype=np.float32)
        for payload in payloads:
            total += unpack(payload.numpy(), shape, exact=exact, where="a member of the ring")
        return torch.from_numpy(total)

    def _exact(self, part: slice) -> NDArray[np.int64]:
        """Return where in a part numbers are that no codec touches."""
        return exact_places(self._entries, slice(self._offset + part.start, self._offset + part.stop))


def ring_coder(blueprint: Blueprint, offset: int, name: str) -> RingCoder | None:
    """Return the coder of a member, or None where gradients travel as they are."""
    bits = blueprint.run.compression.bits
    codec = codec_of(bits) if isinstance(bits, int) else None
    seed = stream_number(blueprint.run.training.seed, f"ring/{name}") >> 1
    return RingCoder(codec, blueprint, offset, seed) if codec is not None else None
