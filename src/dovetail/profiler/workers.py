"""The same measurement on several workers at once: what sharing one machine's memory and caches costs."""

from __future__ import annotations

import math
import multiprocessing
import queue
import statistics
from multiprocessing.synchronize import Barrier
from typing import Any

import torch

from dovetail.errors import DovetailError
from dovetail.profiler.layers import LayerSeconds, measure_layers
from dovetail.profiler.request import ProfileRequest, first_samples

DEADLINE_S = 300.0
LOOK_EVERY_S = 0.5
"""How long a worker that died can go unnoticed."""


def measure_side_by_side(
    request: ProfileRequest, *, num_workers: int, batch: int, seconds: float = math.inf
) -> tuple[LayerSeconds, ...]:
    """Return the seconds of every layer for `batch` samples while `num_workers` processes of one thread do the same."""
    context = multiprocessing.get_context("spawn")  # a forked torch may hang
    results: Any = context.Queue()
    start = context.Barrier(num_workers)
    workers = [
        context.Process(target=_work, args=(request, batch, seconds, start, results), name=f"profile-worker-{number}")
        for number in range(num_workers)
    ]
    for worker in workers:
        worker.start()
    try:
        measured = [_next_result(results, workers) for _ in workers]
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
    return tuple(_middle(list(layer)) for layer in zip(*measured, strict=True))


def _work(request: ProfileRequest, batch: int, seconds: float, start: Barrier, results: Any) -> None:
    """Measure in one worker, beginning together with the others."""
    torch.set_num_threads(1)
    try:
        graph, batches = request.build()
        start.wait(DEADLINE_S)
        optimizer = request.optimizer_for(graph)
        results.put(measure_layers(graph, first_samples(batches, batch), optimizer=optimizer, seconds=seconds))
        start.wait(DEADLINE_S)  # go on loading the machine until all are done
    except Exception as problem:
        results.put(f"{type(problem).__name__}: {problem}")


def _next_result(results: Any, workers: list[Any]) -> tuple[LayerSeconds, ...]:
    """Return what the next worker measured; say which one died or failed instead."""
    waited_s = 0.0
    while waited_s < DEADLINE_S:
        try:
            result = results.get(timeout=LOOK_EVERY_S)
        except queue.Empty:
            waited_s += LOOK_EVERY_S
            dead = [worker.name for worker in workers if worker.exitcode not in (None, 0)]
            if dead:
                raise DovetailError(
                    f"{dead[0]} died while profiling", hint="profile with --workers 1, or a smaller --batch"
                ) from None
            continue
        if isinstance(result, str):
            raise DovetailError(f"a worker failed while profiling: {result}", hint="profile with --workers 1")
        measured: tuple[LayerSeconds, ...] = result
        return measured
    raise DovetailError(f"workers did not finish in {DEADLINE_S:g} s", hint="profile with a smaller --batch")


def _middle(layer: list[LayerSeconds]) -> LayerSeconds:
    return LayerSeconds(
        forward_s=statistics.median(each.forward_s for each in layer),
        backward_s=statistics.median(each.backward_s for each in layer),
        update_s=statistics.median(each.update_s for each in layer),
        spread=max(each.spread for each in layer),
    )
