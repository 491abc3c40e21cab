"""`dovetail train --in-process`: a run in this one process and thread, to look for faults."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli.output import print_json, say

if TYPE_CHECKING:
    from dovetail.runtime.launch.lock import RunLock
    from dovetail.spec.run import Run

SHOW_S = 2.0
"""How often it says where it is."""


def train_alone(run: Run, lock: RunLock, *, resumed: bool, as_json: bool, start_from: Path | None) -> None:
    """Run to the end: a model's exception comes out as it is."""
    import msgspec

    from dovetail.runtime.launch.in_process import InProcess
    from dovetail.runtime.launch.metrics_page import MetricsPage
    from dovetail.runtime.launch.prepare import prepare

    folder = lock.folder
    prepare(run, folder, resume=resumed, bare=True, lock=lock, start_from=start_from, tell=say)
    shown_s, last = -SHOW_S, (0, 0.0)
    page = MetricsPage(say)

    def show(step: int, loss: float) -> None:
        nonlocal shown_s, last
        last = (step, loss)
        page.step(step, loss)
        if time.monotonic() - shown_s >= SHOW_S:
            shown_s = time.monotonic()
            say(f"step {step:,}: loss {loss:.4f}")

    with contextlib.closing(InProcess(folder)) as alone, contextlib.closing(page):
        if run.log.metrics is not None:
            page.begin(folder, run)
        checkpoint = alone.run(show)
    if as_json:
        result = {"folder": str(folder), "step": last[0], "loss": last[1], "checkpoint": checkpoint.name}
        print_json(msgspec.json.encode(result))
    else:
        say(f"done: {last[0]:,} steps, loss {last[1]:.4f}; the model is in {checkpoint}")
