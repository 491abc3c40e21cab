"""PyTorch's DistributedDataParallel with these codecs: a communication hook.

    state = DDPState(bits=4)
    model.register_comm_hook(state, ddp_hook)

Every process sends its bucket's payload to all others, decodes theirs, and takes the mean. With n processes that is
(n - 1) payloads a process, against 2 (n - 1) / n buckets of a ring: n / 2 x bits / 32 times the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from dovetail.codecs.codec import Codec, Floats
from dovetail.codecs.payload import pack, unpack
from dovetail.codecs.registry import codec_of
from dovetail.codecs.top_k import TopK

dist: Any = torch.distributed
SMALL = 1024


class DDPState:
    """What a hook keeps from step to step: the residual of every parameter.

    DDP sorts parameters into other buckets after the first step. What it begins with depends on the model alone, so a
    parameter's number is when it is first seen; in another process of the same program it has the same.
    """

    def __init__(
        self, bits: int = 8, *, topk: float | None = None, group: Any = None, seed: int = 0, warm_up_steps: int = 0
    ) -> None:
        """Choose a width, or with `topk` the part of the numbers that go; the first steps may go as they are."""
        self.codec: Codec | None = TopK(topk) if topk is not None else codec_of(bits)
        self.group, self.seed, self.warm_up_steps = group, seed, warm_up_steps
        self.residuals: dict[int, Floats] = {}
        """By number of the parameter: parts of its bucket's."""
        self.steps: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        """By where a parameter is in memory."""
        self._buckets: dict[int, tuple[tuple[int, ...], Floats]] = {}
        """Which parameters a bucket has, and what is kept back of all of them."""

    def numbers_in(self, bucket: Any) -> tuple[int, ...]:
        """Return which parameters a bucket has; called for every bucket, as who is first seen gets the next number."""
        return tuple(self._numbers.setdefault(each.data_ptr(), len(self._numbers)) for each in bucket.parameters())

    def residual_of(self, bucket: Any, numbers: tuple[int, ...]) -> Floats:
        """Return what is kept back of a bucket with these parameters, to be changed in place."""
        known = self._buckets.get(bucket.index())
        if known is not None and known[0] == numbers:
            return known[1]
        sizes = [each.numel() for each in bucket.parameters()]
        whole = np.zeros(sum(sizes), dtype=np.float32)
        for number, part in zip(numbers, np.split(whole, np.cumsum(sizes)[:-1]), strict=True):
            if number in self.residuals:
                if len(self.residuals[number]) != len(part):
                    raise ValueError(f"what is kept back of parameter {number} is that of another model")
                part[:] = self.residuals[number]
            self.residuals[number] = part
        self._buckets[bucket.index()] = (numbers, whole)
        return whole

    def state_dict(self) -> dict[str, Any]:
        """Return what to save with a checkpoint, each process its own."""
        return {"residuals": {key: each.copy() for key, each in self.residuals.items()}, "steps": dict(self.steps)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take up what was saved."""
        self.residuals = {key: np.array(each, dtype=np.float32) for key, each in saved["residuals"].items()}
        self.steps = dict(saved["steps"])
        self._buckets = {}


def ddp_hook(state: DDPState, bucket: Any) -> Any:
    """Return the future of a bucket's mean over all processes, in the bits that the state says."""
    group = state.group if state.group is not None else dist.group.WORLD
    index, size, tensor = bucket.index(), dist.get_world_size(group), bucket.buffer()
    flat: Floats = tensor.detach().to(torch.float32).cpu().numpy()
    step = state.steps[index] = state.steps.get(index, -1) + 1
    numbers = state.numbers_in(bucket)
    exact = _small_places(bucket)
    if state.codec is None or step < state.warm_up_steps or len(exact) == len(flat):
        tensor.div_(size)
        return dist.all_reduce(tensor, group=group, async_op=True).get_future().then(lambda done: done.value()[0])
    residual = state.residual_of(bucket, numbers)
    seed = (state.seed + dist.get_rank(group)) << 40 | index << 24 | step & 0xFFFFFF
    payload = torch.from_numpy(pack(flat, state.codec, seed=seed, residual=residual, exact=exact))
    arrived = [torch.empty_like(payload) for _ in range(size)]

    def mean(_: Any) -> Tensor:
        total = np.zeros(len(flat), dtype=np.float32)
        for each in arrived:
            total += unpack(each.numpy(), (len(flat),), exact=exact, where="a bucket")
        total /= size
        averaged: Tensor = tensor.copy_(torch.from_numpy(total))
        return averaged

    return dist.all_gather(arrived, payload, group=group, async_op=True).get_future().then(mean)


ddp_hook.__annotations__ = {}
"""PyTorch compares them with its own classes, and these are text."""


def _small_places(bucket: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return where in a bucket the gradients of small tensors are: biases, norms."""
    found, begin = [], 0
    for gradient in bucket.gradients():
        if gradient.dim() <= 1 or gradient.numel() < SMALL:
            found.append(np.arange(begin, begin + gradient.numel()))
        begin += gradient.numel()
    return np.concatenate(found).astype(np.int64) if found else np.empty(0, dtype=np.int64)
