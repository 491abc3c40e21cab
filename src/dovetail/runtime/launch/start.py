"""A run file taken to its end: made ready, started, watched, tried on other data, and what came of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from dovetail.data.source import Source
from dovetail.logs import json_lines
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.restore import check_by_name
from dovetail.runtime.finished.result import RunPace, TrainingResult, read_result
from dovetail.runtime.folder import drop_empty_rows, note_happened
from dovetail.runtime.launch.fork_server import fork_server
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.launch.validation import Validator
from dovetail.runtime.messages import Report
from dovetail.runtime.messages.senders import LAUNCHER
from dovetail.runtime.monitor.callbacks import Callback, Callbacks
from dovetail.runtime.monitor.metrics_page import MetricsPage
from dovetail.runtime.monitor.steady_pace import SteadyPace
from dovetail.runtime.prepare.lock import RunLock
from dovetail.runtime.prepare.main_guard import check_travels, forget
from dovetail.runtime.prepare.run_folder import prepare, undo, with_named_data
from dovetail.runtime.prepare.warm_start import FirstValues
from dovetail.runtime.private_folder import remove_private_folder
from dovetail.spec.run import Run

if TYPE_CHECKING:
    from dovetail.runtime.launch.hosts.fleet import Fleet
    from dovetail.runtime.launch.sharded import ShardedRun
    from dovetail.runtime.trainer.trainer import Trainer

    Processes = LocalRun | ShardedRun | Trainer

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
    bare: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> TrainingResult:
    """Run a run file to its end; a new run whose processes do not start is none.

    `lock` is the folder's, where it is held already; `tell` hears what differs from before. With a `fleet`, workers are
    on its hosts. One process that is `bare` does all in this thread, and a model's exception comes out as it is.
    """
    run = _settled(run, fleet, model, source)
    if resumed and not folder.is_dir():
        raise TrainingError(f"{folder} is no run", hint="give the folder that `dovetail train` wrote")
    forget()
    if not run.is_one_process:
        fork_server()  # it loads while the run is made ready
    page = [] if run.log.metrics is None else [MetricsPage(tell)]
    told, pace, steady = Callbacks([*callbacks, *page]), RunPace(), SteadyPace()
    with ExitStack() as things:
        things.callback(told.close)
        held = lock or things.enter_context(RunLock(folder))
        opened: list[Source] = []
        blueprint = prepare(
            run,
            folder,
            model=model,
            source=source,
            resume=resumed,
            timeline=timeline,
            bare=bare,
            lock=held,
            start_from=start_from,
            elsewhere=None if fleet is None else fleet.place(run, folder),
            tell=tell,
            on_opened=opened.append,
        )
        things.enter_context(json_lines(LAUNCHER, blueprint.id, wanted=blueprint.run.log.format == "json"))
        validator: Validator | None = None
        with ExitStack() as running:
            try:
                if run.validation.is_wanted or validation is not None:
                    validator = Validator(
                        folder,
                        blueprint,
                        model=model,
                        source=source,
                        data=validation,
                        on_validated=told.validated,
                        beside=not run.is_one_process,
                    )
                    things.callback(validator.close)
                told.begin(folder, blueprint.run)
                if run.is_one_process:
                    tell(_in_words(run))
                data = opened[0] if run.is_one_process else source  # other processes open their own
                processes = _processes(run, folder, model, data, lock=held, fleet=fleet, reads_ahead=not bare)
                running.enter_context(processes)
            except BaseException:
                if not resumed:
                    undo(blueprint, folder)
                remove_private_folder(blueprint.private_folder)
                raise

            def handle(report: Report) -> None:
                note_happened(folder, report.events)
                pace.add(report)
                steady.report(report)
                told.report(report)
                if on_report is not None:
                    on_report(report)
                if validator is not None:
                    validator.look(report.checkpoint_step)

            def should_stop() -> bool:
                return stop() or told.asked_to_stop() or (validator is not None and validator.should_stop())

            last = processes.wait(handle, stop=should_stop)
        drop_empty_rows(folder)
        if validator is not None:
            validator.finish()
        total = blueprint.samples * run.training.epochs
        result = replace(
            read_result(folder, pace, total, last=last, model=model, source=source),
            steady_samples_per_s=steady.samples_per_s,
            steady_spread=steady.spread,
        )
        told.end(result)
        return result


def _in_words(run: Run) -> str:
    """Return who trains where it is one process, and how to have it otherwise."""
    from dovetail.runtime.trainer.one_process import in_words  # noqa: PLC0415 - only where it is needed

    return f"{in_words(run)}: the run names no workers or servers; --workers 2 has them"


def _processes(
    run: Run,
    folder: Path,
    model: nn.Module | None,
    source: Source | None,
    *,
    lock: RunLock,
    fleet: Fleet | None,
    reads_ahead: bool,
) -> Processes:
    """Return what trains: this process, workers that own the rows, or workers and servers."""
    if run.is_one_process:
        from dovetail.runtime.trainer.trainer import Trainer  # noqa: PLC0415 - only where it is needed

        own = copy.deepcopy(model)  # the user's module stays as it is, as where workers get theirs
        return Trainer(folder, model=own, source=source, reads_ahead=reads_ahead)
    if run.table.place == "sharded":
        from dovetail.runtime.launch.sharded import ShardedRun  # noqa: PLC0415 - only where it is needed

        return ShardedRun(folder, model=model, source=source, lock=lock)
    return LocalRun(folder, model=model, source=source, lock=lock, fleet=fleet)


def _settled(run: Run, fleet: Fleet | None, model: nn.Module | None, source: Source | None) -> Run:
    """Return a run as it is in one process or on its hosts; refuse what cannot go there."""
    run = with_named_data(run) if source is None else run
    if fleet is not None and run.table.place == "local":
        run = run.with_servers()
    if run.is_one_process:
        from dovetail.runtime.trainer.one_process import in_one_process  # noqa: PLC0415 - only where it is needed

        run = in_one_process(run, other_hosts=fleet is not None)
    elif run.table.place == "sharded":
        from dovetail.runtime.trainer.sharded.over_workers import over_workers  # noqa: PLC0415 - only where it is needed

        run = over_workers(run, other_hosts=fleet is not None)
    _check_objects(run, model, source)
    if fleet is None:
        return run
    if run.checkpoint.key_file is not None:
        raise TrainingError(
            "the run is kept encrypted, and its workers would be on other hosts, which have no key",
            hint="leave --on away, or checkpoint.key_file; disks of hosts can be encrypted by their systems",
        )
    if model is not None or source is not None:
        raise TrainingError(
            f"the {'data' if model is None else 'model'} is an object of this program, and workers are on other hosts",
            hint="give it by name, package.module:function: the file is brought to the hosts",
        )
    return fleet.settled(run)


def _check_objects(run: Run, model: nn.Module | None, source: Source | None) -> None:
    """Refuse a model or data that cannot go to workers, and the lack of those that only a program can make."""
    for thing, what in ((None if run.is_one_process else model, "model"), (source, "data")):
        if thing is not None:
            check_travels(thing, what)
    if source is not None and not isinstance(source, Source):
        raise TrainingError(
            f"a {type(source).__name__} is no source of samples",
            hint="give an object with `schema`, `num_samples` and `read(first, last)`; see dovetail.data.Source",
        )
    check_by_name(run, model=model, source=source)
