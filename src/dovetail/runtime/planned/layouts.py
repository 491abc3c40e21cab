"""Where a run's rows lie and who trains, as a plan says: one process, workers that own the rows, or servers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from dovetail.errors import PlanError
from dovetail.spec.layer import Layer
from dovetail.spec.run import Run, RunWorker
from dovetail.spec.run_sections import RunStage

ROOM = 2.0
"""Memory for rows over their numbers: what is known of each, some tens of bytes, and an index that is never full."""
HOST_PART = 0.8
"""Of a machine's memory that rows may take."""
GPU_PART = 0.7
"""Of a GPU's memory that rows may take; the rest is for layers and what they keep of a batch."""


def in_one_process(
    run: Run,
    *,
    device: str,
    threads: int | None = None,
    readers: int | None = None,
    device_bytes: int | None = None,
    layer_bytes: Mapping[str, int] | None = None,
) -> Run:
    """Return the run as one process that has all rows; memory for rows on a GPU is `device_bytes`, by layer or not."""
    if run.training.mode != "sync":
        raise PlanError(
            f'the plan has one process train, and the run has training.mode = "{run.training.mode}"',
            hint='set mode = "sync", or plan for servers',
        )
    table = msgspec.structs.replace(
        run.table,
        place="local",
        device=device,
        threads=threads,
        device_bytes=device_bytes or run.table.device_bytes,
        layer_bytes=dict(layer_bytes) if layer_bytes is not None else run.table.layer_bytes,
    )
    training = msgspec.structs.replace(run.training, plan=None, dense="ps")
    precision = run.workers[0].precision if run.workers else "float32"
    return msgspec.structs.replace(
        _with_readers(run, readers),
        table=table,
        training=training,
        workers=(RunWorker(precision=precision),),
        stages=[],
    )


def over_workers(run: Run, workers: Sequence[RunWorker], *, readers: int | None = None) -> Run:
    """Return the run as workers that own the rows; `readers` are those of all of them."""
    table = msgspec.structs.replace(run.table, place="sharded", device=None, threads=None)
    training = msgspec.structs.replace(run.training, plan=None, dense="ps")
    run = _with_readers(run, _of_each(readers, sum(worker.count for worker in workers)))
    return msgspec.structs.replace(run, table=table, training=training, workers=tuple(workers), stages=[])


def over_servers(
    run: Run,
    workers: Sequence[RunWorker],
    *,
    servers: int | None = None,
    readers: int | None = None,
    stages: Sequence[RunStage] = (),
) -> Run:
    """Return the run over servers, each with one core, and workers; `readers` are those of the whole first stage."""
    kept = run.servers
    if servers is not None:
        kept = msgspec.structs.replace(kept, count=servers, threads=1)
        if run.faults.replicas >= servers:
            raise PlanError(
                f"the plan has {servers} servers, and the run keeps faults.replicas = {run.faults.replicas}",
                hint="set faults.replicas = 0, or plan with more servers",
            )
    first = sum(worker.count for worker in workers if worker.stage == 0)
    table = msgspec.structs.replace(run.table, place="servers", device=None, threads=None)
    return msgspec.structs.replace(
        _with_readers(run, _of_each(readers, first)),
        table=table,
        servers=kept,
        workers=list(workers),
        stages=list(stages),
    )


def rows_on_gpu(layers: Sequence[Layer], gpu_bytes: float | None, *, least: int) -> int:
    """Return the memory to give to rows on a GPU: for all of them, as far as there is room; at least `least`.

    Tables share it evenly, so each is given what the largest needs.
    """
    needed = [
        layer.weight_bytes + layer.optimizer_bytes + layer.index_bytes for layer in layers if layer.kind == "embedding"
    ]
    room = math.inf if gpu_bytes is None else GPU_PART * gpu_bytes
    wanted = ROOM * len(needed) * max(needed, default=0.0)
    return int(min(max(least, wanted), room))


def with_memory_for_rows(run: Run, layers: Sequence[Layer], memory_bytes: float | None, *, processes: int = 1) -> Run:
    """Return the run with memory for all rows in each of the processes that share them, as far as there is room.

    A run that gives more keeps it. Rows that do not fit go to disk.
    """
    needed = ROOM * rows_bytes(layers) / processes
    room = math.inf if memory_bytes is None else HOST_PART * memory_bytes / processes
    host_bytes = max(run.servers.host_bytes, int(min(needed, room)))
    return msgspec.structs.replace(run, servers=msgspec.structs.replace(run.servers, host_bytes=host_bytes))


def rows_bytes(layers: Sequence[Layer]) -> float:
    """Return what the rows of all embeddings take, with their state and index."""
    embeddings = [layer for layer in layers if layer.kind == "embedding"]
    return sum(layer.weight_bytes + layer.optimizer_bytes + layer.index_bytes for layer in embeddings)


def _of_each(readers: int | None, processes: int) -> int | None:
    """Return how many threads of each process read, where so many do in all."""
    return None if readers is None else max(1, round(readers / max(1, processes)))


def _with_readers(run: Run, readers: int | None) -> Run:
    """Return the run with so many threads of each process that read."""
    return msgspec.structs.replace(run, data=msgspec.structs.replace(run.data, readers=readers or run.data.readers))
