"""`dovetail train`: a run over servers and workers, watched to its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dovetail.cli.options import EXPERT, DataOptions, OnHosts, OtherData, ReplanAbove, ReplanSteps, opened
from dovetail.cli.output import errors_shown, print_json, say
from dovetail.errors import DovetailError

if TYPE_CHECKING:
    from torch import nn

    from dovetail.orchestrate.replanning import Replanner
    from dovetail.runtime.finished.result import TrainingResult
    from dovetail.runtime.launch.hosts.fleet import Fleet
    from dovetail.runtime.monitor.callbacks import Callback
    from dovetail.runtime.prepare.lock import RunLock
    from dovetail.spec.run import Run


def train(
    run_file: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="A run file (TOML or JSON), or a model's name, with defaults."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="So many workers instead of the file's.")] = None,
    servers: Annotated[int | None, typer.Option(min=1, help="So many servers instead of the file's.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples of one step over all workers.")] = None,
    epochs: Annotated[int | None, typer.Option(help="How often the data are seen.")] = None,
    samples: Annotated[int | None, typer.Option(help="Samples of one epoch.")] = None,
    data: OtherData = None,
    data_option: DataOptions = None,
    validation: Annotated[
        str | None,
        typer.Option(help="Other data to try the model on, as --data names them; their columns are those of the data."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; absent: runs/MODEL-N.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Run the stages of this plan, each on workers of its own type.")
    ] = None,
    on: OnHosts = None,
    table: Annotated[
        Literal["local", "servers", "sharded", "device"] | None,
        typer.Option(help="Where embedding rows lie: with the one process that trains, on servers, or over workers."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the run file, e.g. training.tail=0.1."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object, on one line.")] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="With --resume: get ready, then have whoever runs it stop, and go on.",
            rich_help_panel=EXPERT,
        ),
    ] = False,
    mode: Annotated[
        Literal["sync", "ssp", "async"] | None,
        typer.Option(help="Whether workers wait for each other.", rich_help_panel=EXPERT),
    ] = None,
    dense: Annotated[
        Literal["ring", "ps"] | None,
        typer.Option(help="Where dense parameters are updated: on servers, or in a ring.", rich_help_panel=EXPERT),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="sgd, momentum, adagrad, adam or adamw.", rich_help_panel=EXPERT)
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The learning rate.", rich_help_panel=EXPERT)] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of initial values and of the order of the data.", rich_help_panel=EXPERT)
    ] = None,
    validate_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between two trials on the validation data.", rich_help_panel=EXPERT)
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(min=1, help="Stop where so many trials in a row are not the best.", rich_help_panel=EXPERT),
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option(
            help="Parameters to begin with: a run, a checkpoint, model.safetensors, a .pt file.", rich_help_panel=EXPERT
        ),
    ] = None,
    scale: Annotated[
        bool,
        typer.Option(
            "--scale",
            help="With --plan: what does not fit runs in proportion with what there is.",
            rich_help_panel=EXPERT,
        ),
    ] = False,
    problem: Annotated[
        Path | None,
        typer.Option(
            help="With --plan: the problem it was made for; absent: problem.json beside it.", rich_help_panel=EXPERT
        ),
    ] = None,
    replan: Annotated[
        bool,
        typer.Option(
            "--replan",
            help="With --plan: plan again where stages do not take what was predicted.",
            rich_help_panel=EXPERT,
        ),
    ] = False,
    replan_above: ReplanAbove = 0.2,
    replan_steps: ReplanSteps = 20,
    max_bad_rows: Annotated[
        int | None,
        typer.Option(min=0, help="How many broken rows of the data to skip before giving up.", rich_help_panel=EXPERT),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="Pass figures on: wandb, mlflow, tensorboard, or package.module:Class.", rich_help_panel=EXPERT
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="PORT", help="Serve figures for Prometheus; also HOST:PORT; 0: any port.", rich_help_panel=EXPERT
        ),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            help="Draw what every worker did when: FILE.html, .svg or .png; .json for Perfetto.", rich_help_panel=EXPERT
        ),
    ] = None,
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process",
            help="One process and no other thread: to see where a model fails.",
            rich_help_panel=EXPERT,
        ),
    ] = False,
    key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the run encrypted with this key; with --resume: where it is now.",
            rich_help_panel=EXPERT,
        ),
    ] = None,
    site: Annotated[
        str | None, typer.Option(help="Which of the run file's sites this is.", rich_help_panel=EXPERT)
    ] = None,
    write_run: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a run file of what this command line means, with the columns that were chosen, and stop.",
            rich_help_panel=EXPERT,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="With --resume: package.module:Class of a run that began with a module object, if it did not keep it.",
            rich_help_panel=EXPERT,
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="With --resume: run code that the folder names even if others can write the folder.",
            rich_help_panel=EXPERT,
        ),
    ] = False,
) -> None:
    """Train a model over parameter servers and workers of different speed.

    Ctrl-C or SIGTERM keeps a checkpoint and stops; a second one ends at once.
    """
    _check_flags(
        {
            "give a run file, a model, or --resume FOLDER": run_file is None and resume is None,
            "--replan moves workers, and --in-process has none": replan and in_process,
            "--on starts workers on other machines, and --in-process has none": on is not None and in_process,
            "--resume goes on in its own folder: leave --out away": resume is not None and out is not None,
            "--model goes with --resume; a new run names its model first: dovetail train MODEL": (
                model is not None and resume is None
            ),
        }
    )
    flags = {
        "servers.count": servers,
        "table.place": table,
        "training.batch": batch,
        "training.epochs": epochs,
        "training.mode": mode,
        "training.dense": dense,
        "training.seed": seed,
        "data.samples": samples,
        "optimizer.name": optimizer,
        "optimizer.learning_rate": learning_rate,
        "validation.name": validation,
        "validation.every_steps": validate_every,
        "validation.patience": patience,
        "data.options.max_bad_rows": max_bad_rows,
        "log.metrics": metrics,
        "exchange.here": site,
        "checkpoint.key_file": None if key_file is None else str(key_file),
    }
    with errors_shown(as_json=as_json), opened(on) as fleet:
        if timeline is not None:
            from dovetail.cli.timeline import check_timeline_path

            check_timeline_path(timeline)
        from dovetail.cli.run_file import find_run, says_dense, settings_of
        from dovetail.orchestrate.run_files import lock_free_folder
        from dovetail.runtime.launch.fork_server import fork_server
        from dovetail.runtime.prepare.lock import RunLock
        from dovetail.spec.run import with_settings

        settings = settings_of(flags, setting or [], data_option or [])
        run = find_run(run_file, resume, settings, workers, data=data, trust=trust)
        if in_process and not run.is_one_process:
            run = with_settings(run, {"table.place": "local"}, place="--in-process")
        if write_run is not None:
            write_run_file(run, write_run)
            return
        plan = _plan_of(plan, run, run_file, is_needed=scale or replan or problem is not None)
        if plan is not None or not run.is_one_process:
            fork_server()  # it loads while this process does
        planned = None
        if plan is not None:
            from dovetail.cli.tables import show_places
            from dovetail.runtime.planned.from_plan import run_as_planned

            planned = run_as_planned(
                run,
                plan,
                scale=scale,
                problem_file=problem,
                dense=run.training.dense if says_dense(run_file, settings) else None,
                machine=None if fleet is None else fleet.machine,
                tell=say,
            )
            show_places(planned)
            run = planned.run
        if resume is not None and not resume.is_dir():
            raise DovetailError(f"{resume} is no run", hint="give the folder that `dovetail train` wrote")
        if take_over:
            take_over_run(run, resume)
        place = resume or out
        with RunLock(place) if place is not None else lock_free_folder(run) as lock:
            folder = lock.folder
            begun_s, facts = time.time(), {}

            def train_once(run: Run, resumed: bool, replanner: Replanner | None = None) -> TrainingResult:
                return train_watched(
                    run,
                    lock,
                    resumed=resumed,
                    timeline=timeline is not None,
                    start_from=start_from,
                    loggers=log or [],
                    replanner=replanner,
                    fleet=fleet,
                    bare=in_process,
                    model=model,
                    trust=trust,
                )

            if planned is None:
                result = train_once(run, resume is not None)
            else:
                from dovetail.orchestrate.measured import parts_found, rows_found
                from dovetail.orchestrate.replanning import ReplanRule, train_planned

                rule = ReplanRule(above=replan_above, steps=replan_steps) if replan else None
                found = train_planned(
                    planned, folder, train_once, resumed=resume is not None, rule=rule, show=show_places, tell=say
                )
                result, run = found.result, found.planned.run
                rows = rows_found(found.planned.plan, folder, tell=say)
                facts = {"replans": found.replans, "parts": parts_found(found.planned, result), **rows}
        if timeline is not None:
            draw_timeline(folder, timeline, begun_s)
        _show(run, result, facts, as_json=as_json)


def _own_model(name: str | None, folder: Path, run: Run, *, trust: bool) -> nn.Module | None:
    """Return the module of a run that began with an object: what the name makes, or what the folder has kept."""
    from dovetail.cli.predict import own_module
    from dovetail.runtime.model.kept_model import kept_model

    return own_module(name) if name is not None else kept_model(folder, run, trust=trust)


def write_run_file(run: Run, path: Path) -> None:
    """Write a run with the columns of its data in it."""
    from dovetail.runtime.prepare.run_folder import load_source, with_chosen_data, with_named_data
    from dovetail.spec.files import write_struct
    from dovetail.spec.run import Run as RunFile
    from dovetail.spec.run import RunModel

    named = with_named_data(run)
    write_struct(with_chosen_data(named, load_source(named)), path, like=RunFile(model=RunModel(name="-")))
    say(f"written: {path}; train it with: dovetail train {path}")


def _check_flags(complaints: Mapping[str, bool]) -> None:
    """Refuse flags that do not go together."""
    for complaint, is_so in complaints.items():
        if is_so:
            raise typer.BadParameter(complaint)


def _plan_of(plan: Path | None, run: Run, run_file: str | None, *, is_needed: bool) -> Path | None:
    """Return the plan of the command line, else the one that the run file names, from its own folder."""
    if plan is None and run.training.plan is not None:
        plan = Path(run_file or "").parent / run.training.plan
    if plan is None and is_needed:
        raise typer.BadParameter("--scale, --replan and --problem go with --plan")
    return plan


def train_watched(
    run: Run,
    lock: RunLock,
    *,
    resumed: bool,
    timeline: bool,
    start_from: Path | None = None,
    loggers: Sequence[str] = (),
    replanner: Replanner | None = None,
    fleet: Fleet | None = None,
    bare: bool = False,
    model: str | None = None,
    trust: bool = False,
) -> TrainingResult:
    """Run to the end, or to where the user or a replanner stops it; where both do, the user's wish counts.

    `model` is what makes the module of a run that goes on and began with an object; absent, the folder has it.
    """
    from dovetail.runtime.launch.start import start
    from dovetail.runtime.launch.stopping import Stopping
    from dovetail.runtime.monitor.live import Shown, View
    from dovetail.runtime.monitor.loggers import Logging, make_logger

    folder = lock.folder
    with View(f"{run.model.name} · {run.training.mode}", run.training.epochs) as view, Stopping(view.tell) as stopping:
        view.tell(f"{'going on in' if resumed else 'training into'} {folder}")
        others: list[Callback] = [Logging(make_logger(name)) for name in loggers]
        if replanner is not None:
            replanner.tell = view.tell
            others.append(replanner)
        try:
            result = start(
                run,
                folder,
                resumed=resumed,
                timeline=timeline,
                start_from=start_from,
                callbacks=[Shown(view, is_open=True), *others],
                stop=stopping.asked,
                lock=lock,
                fleet=fleet,
                bare=bare,
                model=_own_model(model, folder, run, trust=trust) if resumed else None,
                tell=view.tell,
            )
        except KeyboardInterrupt:
            say(f"ended at once; go on from the last checkpoint with: dovetail train --resume {folder}")
            raise typer.Exit(130) from None
        if replanner is not None and stopping.is_asked:
            replanner.move = None
        return replace(result, interrupted=stopping.is_asked and not result.is_complete)


def draw_timeline(folder: Path, timeline: Path, begun_s: float) -> None:
    """Draw the timeline; a run that was stopped too soon for one is a run all the same."""
    from dovetail.cli.timeline import draw

    try:
        draw(folder, timeline, since_s=begun_s)
    except DovetailError as error:
        say(f"no timeline: {error}; {error.hint}")


def _show(run: Run, result: TrainingResult, more: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        import msgspec

        facts = {"model": run.model.name, "mode": run.training.mode, **result.facts(), **more}
        print_json(msgspec.json.encode(facts))
        return

    from dovetail.cli.tables import part_rows, print_summary, wide_console

    if "parts" in more:
        wide_console().print(part_rows(more["parts"]))
    print_summary(run, result)


def take_over_run(run: Run, folder: Path | None) -> None:
    """Have whoever runs a run stop, once this process could go on."""
    from dovetail.runtime.launch.take_over import take_over

    if folder is None:
        raise typer.BadParameter("--take-over goes with --resume")
    take_over(run, folder, say)
