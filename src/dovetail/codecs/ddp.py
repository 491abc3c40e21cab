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
    """What a hook keeps from step to step: the residual of every bucket."""

    def __init__(
        self, bits: int = 8, *, topk: float | None = None, group: Any = None, seed: int = 0, warm_up_steps: int = 0
    ) -> None:
        """Choose a width, or with `topk` the part of the numbers that go; the first steps may go as they are."""
        self.codec: Codec | None = TopK(topk) if topk is not None else codec_of(bits)
        self.group, self.seed, self.warm_up_steps = group, seed, warm_up_steps
        self.residuals: dict[int, Floats] = {}
        self.steps: dict[int, int] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return what to save with a checkpoint, each process its own."""
        return {"residuals": {key: each.copy() for key, each in self.residuals.items()}, "steps": dict(self.steps)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take up what was saved."""
        self.residuals = {key: np.array(each, dtype=np.float32) for key, each in saved["residuals"].items()}
        self.steps = dict(saved["steps"])


def ddp_hook(state: DDPState, bucket: Any) -> Any:
    """Return the future of a bucket's mean over all processes, in the bits that the state says."""
    group = state.group if state.group is not None else dist.group.WORLD
    index, size, tensor = bucket.index(), dist.get_world_size(group), bucket.buffer()
    flat: Floats = tensor.detach().to(torch.float32).cpu().numpy()
    step = state.steps[index] = state.steps.get(index, -1) + 1
    exact = _small_places(bucket)
    if state.codec is None or step < state.warm_up_steps or len(exact) == len(flat):
        tensor.div_(size)
        return dist.all_reduce(tensor, group=group, async_op=True).get_future().then(lambda done: done.value()[0])
    residual = state.residuals.get(index)
    if residual is None or len(residual) != len(flat):  # buckets are made anew after the first step
        residual = state.residuals[index] = np.zeros(len(flat), dtype=np.float32)
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
