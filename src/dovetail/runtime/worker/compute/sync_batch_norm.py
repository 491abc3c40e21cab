"""Batch norms over the whole batch of a step, of which a worker has a part: sums go through a server, both ways.

Forward, with n, mean and variance of all samples:

    y = weight (x - mean) / sqrt(variance + epsilon) + bias

Backward, where h = (x - mean) / sqrt(variance + epsilon), and sums are over all samples:

    dx = weight / sqrt(variance + epsilon) (dy - sum(dy) / n - h sum(dy h) / n)

Gradients of weight and bias are those of the worker's own samples, which servers add up like all others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import MethodType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import AddedUp, AddUp
from dovetail.runtime.model.parameters import batch_norms_of, norms_of
from dovetail.runtime.process import Process
from dovetail.runtime.worker.compute.compiled import uncompiled
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.links.servers import ServerConnections
from dovetail.runtime.worker.tasks.task import Task
from dovetail.transport import Refused

KEEPER = 0
"""The server that puts statistics together."""


class SyncBatchNorms:
    """The norms of a model, each of which waits for the other workers; the main thread's."""

    def __init__(
        self, served: ServedModel, connections: ServerConnections, process: Process, wanted: Callable[[Task], bool]
    ) -> None:
        """Have the norms of a model that are in training ask."""
        self._connections, self._wanted = connections, wanted
        self._attempt = f"{process.name}/{process.process_id}"
        model = served.graph
        self._task: Task | None = None
        self._place = 0
        self._waited_s = 0.0
        offsets, offset = {}, 0
        for norm in norms_of(model):
            offsets[id(norm)] = offset
            offset += sum(each.numel() for each in (norm.running_mean, norm.running_var) if each is not None)
        for norm in batch_norms_of(model):
            forward = self._forward_of(offsets.get(id(norm), -1))
            norm.forward = MethodType(uncompiled(forward) if served.compiles else forward, norm)  # type: ignore[method-assign]

    def begin(self, task: Task, *, has_samples: bool) -> None:
        """Start with a task, which is computed at once; one that has no samples nobody is to wait for."""
        self._task, self._place, self._waited_s = task, 0, 0.0
        if not has_samples and task.num_positions:
            self._ask(-1, np.zeros(1), back=False, offset=-1, momentum=0.0)

    def end(self) -> float:
        """Note with the task how long it has waited for others, which is not computing; return it."""
        waited_s, self._waited_s = self._waited_s, 0.0
        if self._task is not None:
            self._task.wait_s += waited_s
        self._task = None
        return waited_s

    def _forward_of(self, offset: int) -> Callable[..., Tensor]:
        """Return the forward of a norm whose running statistics begin at an offset; -1: it keeps none."""

        def forward(norm: nn.modules.batchnorm._BatchNorm, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
            if not norm.training or self._task is None:
                return type(norm).forward(norm, input)
            norm._check_input_dim(input)  # type: ignore[no-untyped-call]
            place, self._place = self._place, self._place + 1
            steps = self._task.assign.step + 1
            momentum = 1.0 / steps if norm.momentum is None else float(norm.momentum)

            def exchange(sums: NDArray[np.float64], *, back: bool) -> NDArray[np.float64]:
                return self._ask(place, sums, back=back, offset=offset, momentum=momentum)

            result: Tensor = _Normalise.apply(input, norm.weight, norm.bias, norm.eps, exchange)  # type: ignore[no-untyped-call]
            return result

        return forward

    def _ask(
        self, place: int, sums: NDArray[np.float64], *, back: bool, offset: int, momentum: float
    ) -> NDArray[np.float64]:
        """Bring sums of this worker's samples, and return what all samples come to."""
        task, begun_s = self._task, time.perf_counter()
        if task is None:
            raise RuntimeError("a norm outside of a task")
        assign = task.assign
        message = AddUp(
            generation=assign.generation,
            step=assign.step,
            task=assign.task,
            worker=self._attempt,
            place=place,
            back=back,
            positions=task.num_positions,
            batch=assign.batch,
            offset=offset,
            momentum=momentum,
        )
        envelope = self._connections.ask_one(KEEPER, message, [sums.view(np.int64)], lambda: self._wanted(task))
        self._waited_s += time.perf_counter() - begun_s
        if isinstance(envelope.message, AddedUp):
            return np.array(envelope.arrays[0]).view(np.float64)
        reason = envelope.message.reason if isinstance(envelope.message, Refused) else type(envelope.message).__name__
        raise TrainingError(
            f"a batch norm could not be computed over the whole batch: {reason}",
            hint='have all samples pass the same norms; or training.batch_norm = "own", by each worker\'s part',
        )


class _Normalise(torch.autograd.Function):
    """One batch norm, whose statistics `exchange` makes those of all workers."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, exchange: Any
    ) -> Tensor:
        """Return the normalised batch."""
        dims = [0, *range(2, x.dim())]
        values = x.float()
        variance, mean = torch.var_mean(values, dims, correction=0)
        count = values.numel() // values.shape[1]
        whole = exchange(_packed(count, mean, variance.double() * count), back=False)
        total, mean, variance = _unpacked(whole, values)
        scale = torch.rsqrt(variance + epsilon)
        shape = [1, -1, *[1] * (x.dim() - 2)]
        normal = (values - mean.view(shape)) * scale.view(shape)
        ctx.save_for_backward(normal, scale, weight)
        ctx.total, ctx.exchange, ctx.dims, ctx.shape = total, exchange, dims, shape
        if weight is not None:
            normal = normal * weight.float().view(shape)
        if bias is not None:
            normal = normal + bias.float().view(shape)
        return normal.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the input, the weight and the bias."""
        normal, scale, weight = ctx.saved_tensors
        given = gradients[0].float()
        of_bias, of_weight = given.sum(ctx.dims), (given * normal).sum(ctx.dims)
        of_input = None
        factor = scale if weight is None else scale * weight.float()
        if ctx.needs_input_grad[0] and not ctx.total:  # a single value, by statistics that it has no part in
            of_input = (given * factor.view(ctx.shape)).to(gradients[0].dtype)
        elif ctx.needs_input_grad[0]:
            # Sums of what goes to the normalised values: weight times what comes.
            whole = ctx.exchange(_packed(0, of_bias, of_weight), back=True)
            _, total_bias, total_weight = _unpacked(whole, given)
            pulled = (total_bias.view(ctx.shape) + normal * total_weight.view(ctx.shape)) / ctx.total
            of_input = ((given - pulled) * factor.view(ctx.shape)).to(gradients[0].dtype)
        wants_weight, wants_bias = ctx.needs_input_grad[1:3]
        return (
            of_input,
            of_weight.to(weight.dtype) if wants_weight else None,
            of_bias.to(weight.dtype if weight is not None else of_bias.dtype) if wants_bias else None,
            None,
            None,
        )


def _packed(count: float, one: Tensor, other: Tensor) -> NDArray[np.float64]:
    """Return a count and two numbers a channel as one vector."""
    vectors = torch.cat([one.double().reshape(-1), other.double().reshape(-1)]).cpu().numpy()
    return np.concatenate([[float(count)], vectors])


def _unpacked(whole: NDArray[np.float64], like: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return what was packed, as tensors of a type and place."""
    one, other = torch.from_numpy(whole[1:]).to(like.device, like.dtype).chunk(2)
    return float(whole[0]), one, other
