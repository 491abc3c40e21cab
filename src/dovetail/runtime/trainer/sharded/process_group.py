"""The processes of one generation of a run, and what they do together: over Gloo, in host memory, on one host.

A group is never repaired. Where a member is gone, what the others wait for fails, they end, and fresh processes make a
new group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import Tensor

from dovetail.errors import DovetailError
from dovetail.runtime.worker.control import Pulse

dist: Any = torch.distributed
"""PyTorch does not list its stores and groups as public, though it documents them."""
MEET_S = 120.0
"""For all members to find each other: they load rows first."""
WAIT_S = 1800.0
"""For one operation. The launcher, which sees who died or hangs, ends everyone long before."""
HERE = "127.0.0.1"
Number = TypeVar("Number", np.int64, np.float64)


class GroupBroken(DovetailError):  # noqa: N818
    """Another member is gone: what this one has is of no use without it."""


class ProcessGroup:
    """One member's place among all of them; each of its threads has a group of its own.

    All members call each method in the same order.
    """

    def __init__(self, store: Path, name: str, rank: int, size: int, *, pulse: Pulse) -> None:
        """Meet the others by a file that only this user can read."""
        self.rank, self.size, self._pulse = rank, size, pulse
        with self._waiting():
            meeting = dist.PrefixStore(name, dist.FileStore(str(store), size))
            meeting.set_timeout(timedelta(seconds=MEET_S))
            self._group = self._gloo(meeting)

    def _gloo(self, meeting: Any) -> Any:
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=WAIT_S)
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=HERE)]
        return dist.ProcessGroupGloo(meeting, self.rank, self.size, options)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Wait for others within the block: that is rest, and what fails is their fault."""
        self._pulse.rest()
        try:
            yield
        except RuntimeError as problem:
            text = str(problem).splitlines()[0][:200] if str(problem) else type(problem).__name__
            raise GroupBroken(f"the other workers are gone: {text}", hint="the launcher says who") from None
        finally:
            self._pulse.beat()

    def all_to_all(self, mine: Tensor, counts: Sequence[int], theirs: Tensor, their_counts: Sequence[int]) -> None:
        """Send the first `counts[0]` numbers of `mine` to the first member, and so on; what they send is `theirs`."""
        self.finish(self._begin_all_to_all(mine, counts, theirs, their_counts))

    def _begin_all_to_all(
        self, mine: Tensor, counts: Sequence[int], theirs: Tensor, their_counts: Sequence[int]
    ) -> Any:
        if self.size == 1:
            theirs.copy_(mine)
            return None
        return self._group.alltoall_base(theirs, mine, list(their_counts), list(counts))

    def swap_counts(self, mine: NDArray[Number]) -> NDArray[Number]:
        """Send the first row to the first member, and so on; return what each sends here."""
        return self.begin_swap(mine)()

    def begin_swap(self, mine: NDArray[Number]) -> Callable[[], NDArray[Number]]:
        """Begin to send the first row to the first member, and so on; return what waits for what each sends here."""
        mine = np.ascontiguousarray(mine)
        theirs = np.empty_like(mine)
        each = [mine.shape[1]] * self.size
        sent, received = (torch.from_numpy(numbers).view(-1) for numbers in (mine, theirs))
        work = self._begin_all_to_all(sent, each, received, each)

        return partial(self._swapped, work, (mine, theirs))

    def _swapped(self, work: Any, pair: tuple[NDArray[Number], NDArray[Number]]) -> NDArray[Number]:
        """Wait until both are done with: what was sent, and what has come."""
        self.finish(work)
        return pair[1]

    def begin_sum(self, vector: Tensor) -> Any:
        """Begin to sum a vector over all members, into itself; every member finds the same bits."""
        return None if self.size == 1 or not vector.numel() else self._group.allreduce([vector])

    def finish(self, work: Any) -> None:
        """Wait for what was begun."""
        if work is not None:
            with self._waiting():
                work.wait()

    def gather(self, payload: bytes) -> list[bytes]:
        """Return what every member has, by rank."""
        if self.size == 1:
            return [payload]
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._waiting():
            self._group.allgather([lengths], [torch.tensor([len(payload)])]).wait()
            longest = max(1, *(int(each) for each in lengths))
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(payload)] = torch.frombuffer(bytearray(payload) or bytearray(1), dtype=torch.uint8)[
                : len(payload)
            ]
            found = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
            self._group.allgather([found], [padded]).wait()
        return [bytes(each[: int(length)].numpy()) for each, length in zip(found, lengths, strict=True)]
