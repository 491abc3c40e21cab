"""A run file taken to its end: made ready, started, watched, tried on other data, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from dovetail.data.source import Source
from dovetail.logs import json_lines
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.restore import check_by_name
from dovetail.runtime.finished.result import RunPace, TrainingResult, read_result
from dovetail.runtime.launch.fork_server import fork_server
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.launch.validation import Validator
from dovetail.runtime.messages import Report
from dovetail.runtime.messages.senders import LAUNCHER
from dovetail.runtime.monitor.callbacks import Callback, Callbacks
from dovetail.runtime.monitor.metrics_page import MetricsPage
from dovetail.runtime.prepare.lock import RunLock
from dovetail.runtime.prepare.main_guard import check_travels, forget
from dovetail.runtime.prepare.run_folder import prepare, undo
from dovetail.runtime.prepare.warm_start import FirstValues
from dovetail.runtime.private_folder import remove_private_folder
from dovetail.spec.run import Run

if TYPE_CHECKING:
    from dovetail.runtime.launch.hosts.fleet import Fleet
    from dovetail.runtime.single.device_run import DeviceRun

OnReport = Callable[[Report], None]


def start(
    run: Run,
    folder: Path,
    *,
    model: nn.Module | None = None,
    source: Source | None = None,
    validation: Source | None = None,
    start_from: FirstValues | None = None,
    callbacks: Sequence[Callback] = (),
    resumed: bool = False,
    timeline: bool = False,
    on_report: OnReport | None = None,
    stop: Callable[[], bool] = lambda: False,
    lock: RunLock | None = None,
    fleet: Fleet | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> TrainingResult:
    """Run a run file to its end; a new run whose processes do not start is none.

    `lock` is the folder's, where it is held already; `tell` hears what differs from before. With a `fleet`, workers are
    on its hosts.
    """
    run = _settled(run, fleet, model, source)
    if resumed and not folder.is_dir():
        raise TrainingError(f"{folder} is no run", hint="give the folder that `dovetail train` wrote")
    forget()
    if run.table.place != "device":
        fork_server()  # it loads while the run is made ready
    page = [] if run.log.metrics is None else [MetricsPage(tell)]
    told, pace = Callbacks([*callbacks, *page]), RunPace()
    with ExitStack() as things:
        things.callback(told.close)
        held = lock or things.enter_context(RunLock(folder))
        blueprint = prepare(
            run,
            folder,
            model=model,
            source=source,
            resume=resumed,
            timeline=timeline,
            lock=held,
            start_from=start_from,
            elsewhere=None if fleet is None else fleet.place(run, folder),
            tell=tell,
        )
        things.enter_context(json_lines(LAUNCHER, blueprint.id, wanted=blueprint.run.log.format == "json"))
        validator: Validator | None = None
        with ExitStack() as running:
            try:
                if run.validation.is_wanted or validation is not None:
                    validator = Validator(
                        folder, blueprint, model=model, source=source, data=validation, on_validated=told.validated
                    )
                    things.callback(validator.close)
                told.begin(folder, blueprint.run)
                if run.table.place == "device":
                    processes = _on_device(folder, model, source)
                else:
                    processes = LocalRun(folder, model=model, source=source, lock=held, fleet=fleet)
                running.enter_context(processes)
            except BaseException:
                if not resumed:
                    undo(blueprint, folder)
                remove_private_folder(blueprint.private_folder)
                raise

            def handle(report: Report) -> None:
                pace.add(report)
                told.report(report)
                if on_report is not None:
                    on_report(report)
                if validator is not None:
                    validator.look(report.checkpoint_step)

            def should_stop() -> bool:
                return stop() or told.asked_to_stop() or (validator is not None and validator.should_stop())

            last = processes.wait(handle, stop=should_stop)
        if validator is not None:
            validator.finish()
        total = blueprint.samples * run.training.epochs
        result = read_result(folder, pace, total, last=last, model=model, source=source)
        told.end(result)
        return result


def _on_device(folder: Path, model: nn.Module | None, source: Source | None) -> LocalRun | DeviceRun:
    """Return a run in this one process."""
    from dovetail.runtime.single.device_run import DeviceRun  # noqa: PLC0415 - only where it is needed

    return DeviceRun(folder, model=model, source=source)


def _settled(run: Run, fleet: Fleet | None, model: nn.Module | None, source: Source | None) -> Run:
    """Return a run as it is on its device or hosts; refuse what cannot go there."""
    if run.table.place == "device":
        from dovetail.runtime.single.device_run import on_one_device  # noqa: PLC0415 - only where it is needed

        run = on_one_device(run, other_hosts=fleet is not None)
    _check_objects(run, model, source)
    if fleet is None:
        return run
    if model is not None or source is not None:
        raise TrainingError(
            f"the {'data' if model is None else 'model'} is an object of this program, and workers are on other hosts",
            hint="give it by name, package.module:function: the file is brought to the hosts",
        )
    return fleet.settled(run)


def _check_objects(run: Run, model: nn.Module | None, source: Source | None) -> None:
    """Refuse a model or data that cannot go to workers, and the lack of those that only a program can make."""
    for thing, what in ((model, "model"), (source, "data")):
        if thing is not None:
            check_travels(thing, what)
    if source is not None and not isinstance(source, Source):
        raise TrainingError(
            f"a {type(source).__name__} is no source of samples",
            hint="give an object with `schema`, `num_samples` and `read(first, last)`; see dovetail.data.Source",
        )
    check_by_name(run, model=model, source=source)
