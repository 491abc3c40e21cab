"""Seconds of each layer: forward, backward and update, one after the other as in a training step.

The blocks of a chain run in order, each on inputs cut off from the graph before it, so that its backward pass can be
timed by itself; gradients are handed from block to block in reverse. All blocks run in every repeat, so that caches are
as warm or as cold as in training.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dovetail.data import Batch
from dovetail.models import Block, Chain, ModelOptimizer, make_optimizer
from dovetail.profiler.stopwatch import Stopwatch, stopwatch_for

WARM_UP = 2
REPEATS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """Medians over the repeats; `spread` is the median deviation of the sum, relative to it."""

    forward_s: float
    backward_s: float
    update_s: float
    spread: float

    @property
    def total_s(self) -> float:
        """Forward, backward and update together."""
        return self.forward_s + self.backward_s + self.update_s


def measure_layers(
    chain: Chain,
    batches: Sequence[Batch],
    *,
    optimizer: str,
    learning_rate: float = 1e-3,
    repeats: int = REPEATS,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[LayerSeconds, ...]:
    """Return the seconds of every block for one batch, on the device that the chain and the batches are on.

    The batches take turns, as fresh data does: embedding rows of the last batch are not the rows of this one.
    """
    device = batches[0].labels.device
    stopwatch = stopwatch_for(device)
    optimizers = [_optimizer_of(block, optimizer, learning_rate) for block in chain.blocks]
    passes: list[list[tuple[float, float, float]]] = []
    for repeat in range(WARM_UP + repeats):
        times = _one_pass(chain, batches[repeat % len(batches)], optimizers, stopwatch)
        if repeat >= WARM_UP:
            passes.append(times)
        if progress is not None:
            progress(repeat + 1, WARM_UP + repeats)
    return tuple(_median([times[position] for times in passes]) for position in range(len(chain)))


def _optimizer_of(block: Block, name: str, learning_rate: float) -> ModelOptimizer | None:
    """Return an optimizer of one block's parameters, or None where it has none."""
    has_parameters = any(parameter.requires_grad for parameter in block.module.parameters())
    return make_optimizer(block.module, name, learning_rate) if has_parameters else None


def _one_pass(
    chain: Chain, batch: Batch, optimizers: list[ModelOptimizer | None], stopwatch: Stopwatch
) -> list[tuple[float, float, float]]:
    """Run one training step block by block; return (forward, backward, update) seconds of each."""
    outputs: dict[str, Tensor] = {}
    cut_inputs: list[dict[str, Tensor]] = []
    marks: list[list[Any]] = []
    for block in chain.blocks:
        inputs = {name: _cut_off(outputs[name]) for name in block.after or ()}
        arguments = [*inputs.values(), *(getattr(batch, name) for name in block.reads)]
        begun = stopwatch.mark()
        outputs[block.name] = block.module(*arguments)
        marks.append([begun, stopwatch.mark()])
        cut_inputs.append(inputs)
    gradients: dict[str, Tensor] = {}
    for position in range(len(chain) - 1, -1, -1):
        output = outputs[chain.blocks[position].name]
        begun = stopwatch.mark()
        if output.requires_grad:
            given = gradients.get(chain.blocks[position].name)
            scaled = output / batch.num_samples if given is None else output
            torch.autograd.backward(scaled, given)
        marks[position] += [begun, stopwatch.mark()]
        for name, cut in cut_inputs[position].items():
            if cut.grad is not None:
                gradients[name] = cut.grad if name not in gradients else gradients[name] + cut.grad
    for position, block_optimizer in enumerate(optimizers):
        begun = stopwatch.mark()
        if block_optimizer is not None:
            block_optimizer.step()
            block_optimizer.zero_grad()
        marks[position] += [begun, stopwatch.mark()]
    return [
        (
            stopwatch.seconds_between(taken[0], taken[1]),
            stopwatch.seconds_between(taken[2], taken[3]),
            stopwatch.seconds_between(taken[4], taken[5]),
        )
        for taken in marks
    ]


def _cut_off(output: Tensor) -> Tensor:
    """Return a tensor as the start of a graph of its own, with a gradient where it can have one."""
    return output.detach().requires_grad_(output.is_floating_point())


def _median(times: list[tuple[float, float, float]]) -> LayerSeconds:
    """Return the medians of one block's times."""
    forward_s, backward_s, update_s = (statistics.median(column) for column in zip(*times, strict=True))
    totals = [sum(row) for row in times]
    middle = statistics.median(totals)
    deviation = statistics.median(abs(total - middle) for total in totals)
    return LayerSeconds(
        forward_s=forward_s, backward_s=backward_s, update_s=update_s, spread=deviation / middle if middle > 0 else 0.0
    )
