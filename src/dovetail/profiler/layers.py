"""Seconds of each layer: forward, backward and update, as in a training step.

Two measurements make one. Whole steps say how long forward, backward and update take together. Then the blocks run one
by one, each on inputs detached from the graph before it, so that its backward pass can be timed by itself; that says
which share of each phase is whose. Block by block everything takes a little longer (more calls, an optimizer each), so
only the shares are taken from there, and the layers add up to the whole step.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dovetail.data import Batch
from dovetail.models import Block, LayerGraph, ModelOptimizer, make_optimizer

WARM_UP = 2
REPEATS = 9
Phases = tuple[float, float, float]
"""Seconds of forward, backward and update."""


class Stopwatch(Protocol):
    """Takes marks, and says how long it was between two of them once the device has got there."""

    def mark(self) -> Any:
        """Return the present moment."""
        ...

    def seconds_between(self, earlier: Any, later: Any) -> float:
        """Return the seconds between two marks."""
        ...


class WallClock:
    """For devices that have done their work when a call returns."""

    def mark(self) -> float:
        """Return the present moment."""
        return time.perf_counter()

    def seconds_between(self, earlier: float, later: float) -> float:
        """Return the seconds between two marks."""
        return later - earlier


class CudaEvents:
    """For a GPU, which works through a queue: events in the queue carry the time at which it reached them."""

    def mark(self) -> torch.cuda.Event:
        """Put an event into the queue."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds_between(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        """Return the seconds between two events, waiting for the later one."""
        later.synchronize()
        return float(earlier.elapsed_time(later)) / 1e3


def stopwatch_for(device: torch.device) -> Stopwatch:
    """Return the stopwatch that fits a device."""
    return CudaEvents() if device.type == "cuda" else WallClock()


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
    graph: LayerGraph,
    batches: Sequence[Batch],
    *,
    optimizer: str,
    learning_rate: float = 1e-3,
    repeats: int = REPEATS,
    seconds: float = math.inf,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[LayerSeconds, ...]:
    """Return the seconds of every block for one batch, on the device that the graph and the batches are on.

    The batches take turns, as fresh data does: embedding rows of the last batch are not the rows of this one.
    After so many `seconds` no other repeat is begun; where the first took as long already, it counts.
    """
    stopwatch = stopwatch_for(batches[0].labels.device)
    whole_optimizer = make_optimizer(graph, optimizer, learning_rate)
    optimizers = [_optimizer_of(block, optimizer, learning_rate) for block in graph.blocks]
    wholes: list[Phases] = []
    passes: list[list[Phases]] = []
    begun_s = time.perf_counter()
    for repeat in range(WARM_UP + repeats):
        batch = batches[repeat % len(batches)]
        whole = _whole_step(graph, batch, whole_optimizer, stopwatch)
        times = _block_by_block(graph, batch, optimizers, stopwatch)
        gone_s = time.perf_counter() - begun_s
        is_last = gone_s * (repeat + 2) / (repeat + 1) > seconds  # the next would end after that
        if repeat >= WARM_UP or is_last:
            wholes.append(whole)
            passes.append(times)
        if progress is not None:
            progress(repeat + 1, WARM_UP + repeats)
        if is_last:
            break
    layers = [_middle([times[position] for times in passes]) for position in range(len(graph))]
    spreads = [_spread([sum(times[position]) for times in passes]) for position in range(len(graph))]
    return tuple(
        LayerSeconds(forward_s=forward_s, backward_s=backward_s, update_s=update_s, spread=spread)
        for (forward_s, backward_s, update_s), spread in zip(_scaled(layers, _middle(wholes)), spreads, strict=True)
    )


def _whole_step(graph: LayerGraph, batch: Batch, optimizer: ModelOptimizer, stopwatch: Stopwatch) -> Phases:
    """Run one training step; return (forward, backward, update) seconds of the whole model."""
    begun = stopwatch.mark()
    loss = graph(batch)
    computed = stopwatch.mark()
    (loss / batch.num_samples).backward()
    derived = stopwatch.mark()
    optimizer.step()
    optimizer.zero_grad()
    updated = stopwatch.mark()
    return (
        stopwatch.seconds_between(begun, computed),
        stopwatch.seconds_between(computed, derived),
        stopwatch.seconds_between(derived, updated),
    )


def _optimizer_of(block: Block, name: str, learning_rate: float) -> ModelOptimizer | None:
    """Return an optimizer of one block's parameters, or None where it has none."""
    has_parameters = any(parameter.requires_grad for parameter in block.module.parameters())
    return make_optimizer(block.module, name, learning_rate) if has_parameters else None


def _block_by_block(
    graph: LayerGraph, batch: Batch, optimizers: list[ModelOptimizer | None], stopwatch: Stopwatch
) -> list[Phases]:
    """Run one training step block by block; return (forward, backward, update) seconds of each."""
    outputs: dict[str, Tensor] = {}
    own_inputs: list[dict[str, Tensor]] = []
    marks: list[list[Any]] = []
    for block in graph.blocks:
        inputs = {name: _detached(outputs[name]) for name in block.after or ()}
        arguments = [*inputs.values(), *(getattr(batch, name) for name in block.reads)]
        begun = stopwatch.mark()
        outputs[block.name] = block.module(*arguments)
        marks.append([begun, stopwatch.mark()])
        own_inputs.append(inputs)
    gradients: dict[str, Tensor] = {}
    for position in range(len(graph) - 1, -1, -1):
        output = outputs[graph.blocks[position].name]
        begun = stopwatch.mark()
        if output.requires_grad:
            given = gradients.get(graph.blocks[position].name)
            scaled = output / batch.num_samples if given is None else output
            torch.autograd.backward(scaled, given)
        marks[position] += [begun, stopwatch.mark()]
        for name, tensor in own_inputs[position].items():
            if tensor.grad is not None:
                gradients[name] = tensor.grad if name not in gradients else gradients[name] + tensor.grad
    for position, block_optimizer in enumerate(optimizers):
        if block_optimizer is not None:
            begun = stopwatch.mark()
            block_optimizer.step()
            block_optimizer.zero_grad()
            marks[position] += [begun, stopwatch.mark()]
    return [
        (
            stopwatch.seconds_between(taken[0], taken[1]),
            stopwatch.seconds_between(taken[2], taken[3]),
            stopwatch.seconds_between(taken[4], taken[5]) if len(taken) > 4 else 0.0,
        )
        for taken in marks
    ]


def _detached(output: Tensor) -> Tensor:
    """Return a tensor as the start of a graph of its own, with a gradient where it can have one."""
    return output.detach().requires_grad_(output.is_floating_point())


def _scaled(layers: list[Phases], whole: Phases) -> list[Phases]:
    """Return the layers' times, each phase scaled so that the layers add up to the whole step."""
    factors = []
    for phase in range(3):
        total_s = sum(layer[phase] for layer in layers)
        factors.append(whole[phase] / total_s if total_s > 0 else 1.0)
    return [(layer[0] * factors[0], layer[1] * factors[1], layer[2] * factors[2]) for layer in layers]


def _middle(times: list[Phases]) -> Phases:
    forward_s, backward_s, update_s = (statistics.median(column) for column in zip(*times, strict=True))
    return forward_s, backward_s, update_s


def _spread(totals_s: list[float]) -> float:
    """Return the median deviation from the median, relative to it."""
    middle = statistics.median(totals_s)
    return statistics.median(abs(total - middle) for total in totals_s) / middle if middle > 0 else 0.0
