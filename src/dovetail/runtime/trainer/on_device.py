"""Rows in the memory of a GPU, over host memory and disk: the hot ones lie where the layers are."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from dovetail.embedding import Table
from dovetail.embedding.tiers.device.captured_step import recorder_for
from dovetail.embedding.tiers.device.table import DeviceTable
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import TableSummary, rows_of
from dovetail.runtime.server.shard import load_table
from dovetail.runtime.trainer.device_rows import DeviceRows, doors_of
from dovetail.runtime.trainer.device_steps import FreeSteps, KnownSteps
from dovetail.runtime.trainer.steps import Beginning, Steps, Strategy
from dovetail.runtime.worker.compute.compiled import can_compile
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.rows.prefetch import PrefetchableLookUp, prefetchable_look_ups
from dovetail.spec.run_sections import RunTable


def rows_on_device(begin: Beginning) -> Strategy:
    """Return tables with a device tier, and the steps of a model over them."""
    run, blueprint = begin.blueprint.run, begin.blueprint
    budgets = bytes_by_table(run.table, [table.name for table in blueprint.tables])
    tables = [
        load_table(
            blueprint,
            begin.manifest,
            begin.checkpoint,
            position,
            cold=rows_of(begin.folder, blueprint.servers[0].name) / f"table-{position}",
            device=str(begin.device),
            device_bytes=held_bytes,
        )
        for position, held_bytes in enumerate(budgets)
    ]
    doors, look_ups = doors_of(tables), prefetchable_look_ups(begin.built)
    rows = DeviceRows(doors)
    model = ServedModel(
        begin.built,
        rows,
        begin.device,
        schema=begin.schema,
        precision=run.workers[0].precision,
        compiles=run.training.compile and can_compile(begin.device, warnings.warn),
    )
    if model.loss_scale is not None:
        raise TrainingError(
            "the run computes in float16, and its rows lie on a device, where losses are not scaled",
            hint='take bfloat16, or set table.place = "servers"',
        )
    return Strategy(model, _steps_by(begin, model, rows, doors, look_ups), tables, _summary_of)


def _steps_by(
    begin: Beginning,
    model: ServedModel,
    rows: DeviceRows,
    doors: Sequence[DeviceTable],
    look_ups: Sequence[PrefetchableLookUp] | str,
) -> Steps:
    """Return how steps are computed; on CUDA, where they are not captured though they might be, say why."""
    record = recorder_for(model.device) if begin.blueprint.run.table.graph else None
    if model.compiles:
        look_ups = "training.compile is on"
    if not isinstance(look_ups, str):
        return KnownSteps(model, doors, look_ups, record=record, tell=begin.tell)
    if record is not None:
        begin.tell(f"steps run operation by operation, not as a CUDA graph: {look_ups}")
    return FreeSteps(model, rows)


def bytes_by_table(settings: RunTable, names: Sequence[str]) -> list[int]:
    """Return the memory for rows of each table: what its layer is given by name, else an even share of the rest."""
    plain = [name.removeprefix("layers.").replace(".", "_") for name in names]
    given = {name.replace(".", "_"): rows_bytes for name, rows_bytes in settings.layer_bytes.items()}
    if unknown := [name for name in settings.layer_bytes if name.replace(".", "_") not in plain]:
        raise TrainingError(
            f"table.layer_bytes names `{unknown[0]}`, which is no layer with a table",
            hint=f"such layers are {', '.join(plain) or 'none'}",
        )
    others = [name for name in plain if name not in given]
    rest = settings.device_bytes - sum(given.values())
    if rest < len(others):
        raise TrainingError(
            f"table.layer_bytes gives {sum(given.values())} bytes, and table.device_bytes = {settings.device_bytes} "
            f"leaves too little for {len(others)} other tables",
            hint="raise table.device_bytes, or name fewer layers",
        )
    return [given[name] if name in given else rest // len(others) for name in plain]


def _summary_of(table: Table) -> TableSummary:
    """Return where a table's rows are, and what moved."""
    stats, on_device = table.stats(), table.on_device
    if on_device is None:
        raise TrainingError("a table is not on the device", hint="a bug: report it")
    moved = on_device.moved()
    return TableSummary(
        device_rows=stats.device_rows,
        host_rows=stats.host_rows,
        disk_rows=stats.disk_rows,
        hit_ratio=round(moved.hit_ratio, 4),
        lifted=moved.num_promoted,
        lowered=moved.num_demoted,
    )
