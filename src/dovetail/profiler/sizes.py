"""Bytes of each layer: what it reads, holds, keeps for its backward pass, hands on, and exchanges with others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dovetail.data import Batch
from dovetail.models import LayerGraph, SlotEmbedding, make_optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """What one batch of a layer takes in bytes, and the floating-point operations of its forward pass."""

    input_bytes: float
    weight_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    output_bytes: float
    traffic_bytes: float
    """What one worker exchanges with the others: rows there and back, or gradients once around a ring."""
    forward_flops: float


def measure_sizes(graph: LayerGraph, batch: Batch, *, optimizer: str) -> tuple[LayerSizes, ...]:
    """Return the sizes of every block for one batch, by running it once."""
    outputs: dict[str, Tensor] = {}
    sizes = []
    for block in graph.blocks:
        inputs = [
            outputs[name].detach().requires_grad_(outputs[name].is_floating_point()) for name in block.after or ()
        ]
        fields = [getattr(batch, name) for name in block.reads]
        read = [field for field in fields if field is not None]
        kept = _Kept(block.module, inputs)
        with kept, FlopCounterMode(display=False) as counter:
            output = block.module(*inputs, *fields)
        outputs[block.name] = output
        weight_bytes = sum(_bytes(parameter) for parameter in block.module.parameters())
        sizes.append(
            LayerSizes(
                input_bytes=sum(_bytes(tensor) for tensor in (*inputs, *read)),
                weight_bytes=weight_bytes,
                optimizer_bytes=_optimizer_bytes(block.module, output, optimizer),
                activation_bytes=kept.num_bytes(beside=output),
                output_bytes=_bytes(output),
                traffic_bytes=_traffic_bytes(block.module, batch),
                forward_flops=float(counter.get_total_flops()),
            )
        )
    return tuple(sizes)


class _Kept:
    """Counts what autograd keeps of a forward pass: each storage once, parameters and inputs left out.

    Inputs are outputs of earlier layers, which count them.
    """

    def __init__(self, module: nn.Module, inputs: list[Tensor]) -> None:
        """Know the storages that are there anyway."""
        self._known = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *inputs)}
        self._storages: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def __enter__(self) -> None:
        self._hooks.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._hooks.__exit__(*exception)

    def num_bytes(self, *, beside: Tensor) -> float:
        """Return the bytes kept, the output itself included, for the next layer keeps it alive."""
        storages = dict(self._storages)
        if beside.untyped_storage().data_ptr() in self._known:
            return float(sum(storages.values()))
        storages[beside.untyped_storage().data_ptr()] = beside.untyped_storage().nbytes()
        return float(sum(storages.values()))

    def _pack(self, tensor: Tensor) -> Tensor:
        """Note a tensor that autograd keeps."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._storages[storage.data_ptr()] = storage.nbytes()
        return tensor


def _bytes(tensor: Tensor) -> float:
    return float(tensor.numel() * tensor.element_size())


def _optimizer_bytes(module: nn.Module, output: Tensor, name: str) -> float:
    """Return the size of an optimizer's state for a module after one step of zero gradients."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return 0.0
    optimizer = make_optimizer(module, name, 1e-9)
    if output.requires_grad:
        torch.autograd.backward(output, torch.zeros_like(output))
    before = [
        parameter.detach().clone() if parameter.numel() < 1_000_000 else None for parameter in module.parameters()
    ]
    optimizer.step()
    optimizer.zero_grad()
    for parameter, value in zip(module.parameters(), before, strict=True):
        if value is not None:
            parameter.data.copy_(value)
    tensors = [
        value
        for part in optimizer.parts
        for state in part.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    return sum(_bytes(tensor) for tensor in tensors)


def _traffic_bytes(module: nn.Module, batch: Batch) -> float:
    """Return what one worker exchanges for one batch.

    Embedding rows travel to the worker and their gradients back: each row that the batch touches, twice. Dense
    gradients go once around a ring, which sends and receives all of them, for any number of workers beyond a few.
    """
    traffic = 0.0
    spread: set[int] = set()
    for part in module.modules():
        if isinstance(part, SlotEmbedding):
            touched = torch.unique(batch.ids % part.num_rows).numel()
            share = (part.last_slot - part.first_slot) / part.num_slots
            traffic += 2 * touched * share * part.width * part.weight.element_size()
            spread.add(id(part.weight))
    return traffic + sum(2 * _bytes(parameter) for parameter in module.parameters() if id(parameter) not in spread)
