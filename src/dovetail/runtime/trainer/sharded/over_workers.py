"""Rows over the workers of a run: what such a run is, and the strategy of one of its workers."""

from __future__ import annotations

import warnings

import msgspec

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import rows_of
from dovetail.runtime.server.shard import load_tables
from dovetail.runtime.trainer.on_host import summary_of
from dovetail.runtime.trainer.sharded.process_group import ProcessGroup
from dovetail.runtime.trainer.sharded.steps import ShardedRows, ShardedSteps
from dovetail.runtime.trainer.sharded.worker_group import WorkerGroup
from dovetail.runtime.trainer.steps import Beginning, Strategy
from dovetail.runtime.worker.compute.compiled import can_compile
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.control import Pulse
from dovetail.runtime.worker.rows.prefetch import prefetchable_look_ups
from dovetail.spec.run import Run, RunWorker

SERVERS = 'set table.place = "servers"'


def over_workers(run: Run, *, other_hosts: bool = False) -> Run:
    """Return the run as workers do it that own the rows; refuse what those cannot."""
    mode = run.training.mode
    refused = {
        "its workers are on other hosts, to which a group of processes neither encrypts nor authenticates": other_hosts,
        "the run is cut into stages": bool(run.stages),
        "it exchanges with other sites": bool(run.sites),
        f'training.mode is "{mode}", and its workers take every step together': mode != "sync",
        "gradients travel in fewer bits, which only servers take": run.compression.is_wanted,
        "a worker has a share pinned, and all have equal parts": any(each.share is not None for each in run.workers),
        "a worker keeps rows of servers (cache_bytes), and there are none": any(w.cache_bytes for w in run.workers),
        "it computes in float16, and losses are not scaled": any(each.precision == "float16" for each in run.workers),
    }
    for why, is_so in refused.items():
        if is_so:
            raise TrainingError(f'the rows lie with the workers (table.place = "sharded"), and {why}', hint=_hint(why))
    num_workers = len(run.each_worker())
    return msgspec.structs.replace(
        run,
        servers=msgspec.structs.replace(run.servers, count=num_workers),
        training=msgspec.structs.replace(run.training, dense="ps"),
        faults=msgspec.structs.replace(run.faults, replicas=0),
    )


def _hint(why: str) -> str:
    """Return the way out of what cannot be."""
    ways = {
        "its workers": f"leave --on away, or {SERVERS}",
        "training.mode": f'set mode = "sync", or {SERVERS}',
        "gradients travel": f"leave [compression] away, or {SERVERS}",
        "it computes": f"take bfloat16, or {SERVERS}",
    }
    return next((way for begin, way in ways.items() if why.startswith(begin)), f"leave that away, or {SERVERS}")


def rows_over_workers(
    begin: Beginning, group: WorkerGroup, rows: ProcessGroup, ahead: ProcessGroup, settings: RunWorker, pulse: Pulse
) -> Strategy:
    """Return a worker's part of all tables, and the steps of a model over those of all workers."""
    blueprint, run = begin.blueprint, begin.blueprint.run
    tables = load_tables(
        blueprint,
        begin.manifest,
        begin.checkpoint,
        cold=rows_of(begin.folder, blueprint.servers[group.rank].name),
        server=group.rank,
        threads=settings.threads,
    )
    is_closed = not tables or not isinstance(prefetchable_look_ups(begin.built), str)
    sharded = ShardedRows(group.size, begin.device)
    model = ServedModel(
        begin.built,
        sharded,
        begin.device,
        schema=begin.schema,
        precision=settings.precision,
        compiles=run.training.compile and can_compile(begin.device, warnings.warn),
    )
    group.steps = ShardedSteps(model, sharded, tables, rows, ahead, pulse, is_closed=is_closed)
    return Strategy(model, group.steps, tables, summary_of)
