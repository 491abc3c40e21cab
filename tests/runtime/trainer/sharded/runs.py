"""Small sharded runs as tests start them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from dovetail.data.source import Source
from dovetail.runtime.launch.sharded import ShardedRun
from dovetail.runtime.messages import Report
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.trainer.sharded.over_workers import over_workers
from dovetail.spec.run import Run


def sharded(run: Run) -> Run:
    """Return a run with its rows over its workers."""
    return over_workers(msgspec.structs.replace(run, table=msgspec.structs.replace(run.table, place="sharded")))


def train_sharded(
    run: Run,
    folder: Path,
    *,
    model: nn.Module | None = None,
    source: Source | None = None,
    resume: bool = False,
    meanwhile: Callable[[ShardedRun, Report], None] | None = None,
    stop: Callable[[Report | None], bool] = lambda _: False,
    timeout_s: float = 200.0,
) -> ShardedRun:
    """Run to the end; `meanwhile` is called with every report."""
    run = sharded(run)
    prepare(run, folder, model=model, source=source, resume=resume)
    with ShardedRun(folder, model=model, source=source) as processes:

        def told(report: Report) -> None:
            if meanwhile is not None:
                meanwhile(processes, report)

        processes.wait(told, stop=lambda: stop(processes.report), timeout_s=timeout_s)
    return processes


def counts_of(folder: Path) -> dict[str, Any]:
    """Return what the summary of a run says, as plain values."""
    found: dict[str, Any] = msgspec.json.decode((folder / "summary.json").read_bytes())
    return found
