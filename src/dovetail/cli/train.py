"""`dovetail train`: a run over servers and workers, watched to its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dovetail.cli.options import EXPERT, OnHosts, ReplanAbove, ReplanSteps, opened
from dovetail.cli.output import errors_shown, print_json, say
from dovetail.errors import DovetailError

if TYPE_CHECKING:
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
    data: Annotated[
        str | None, typer.Option(help="Other data: clicks, criteo, csv, parquet, or package.module:function.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; absent: runs/MODEL-N.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Run the stages of this plan, each on workers of its own type.")
    ] = None,
    on: OnHosts = None,
    table: Annotated[
        Literal["servers", "device"] | None,
        typer.Option(help="Where embedding rows lie: on servers, or on this process's GPU over host memory and disk."),
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
            help="Everything in this process and thread: to see where a model fails.",
            rich_help_panel=EXPERT,
        ),
    ] = False,
    site: Annotated[
        str | None, typer.Option(help="Which of the run file's sites this is.", rich_help_panel=EXPERT)
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
        "validation.every_steps": validate_every,
        "validation.patience": patience,
        "data.options.max_bad_rows": max_bad_rows,
        "log.metrics": metrics,
        "exchange.here": site,
    }
    with errors_shown(as_json=as_json), opened(on) as fleet:
        if timeline is not None:
            from dovetail.cli.timeline import check_timeline_path

            check_timeline_path(timeline)
        from dovetail.cli.run_file import find_run, says_dense, settings_of
        from dovetail.orchestrate.run_files import is_on_device, lock_free_folder
        from dovetail.runtime.launch.fork_server import fork_server
        from dovetail.runtime.prepare.lock import RunLock

        settings = settings_of(flags, setting or [])
        if not in_process and not is_on_device(run_file, settings):
            fork_server()  # it loads while this process does
        run = find_run(run_file, resume, settings, workers, data=data, trust=trust)
        plan = _plan_of(plan, run, run_file, is_needed=scale or replan or problem is not None)
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
            if in_process:
                train_alone(run, lock, resumed=resume is not None, as_json=as_json, start_from=start_from)
                return
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
                )

            if planned is None:
                result = train_once(run, resume is not None)
            else:
                from dovetail.orchestrate.measured import rows_found
                from dovetail.orchestrate.replanning import ReplanRule, train_planned

                rule = ReplanRule(above=replan_above, steps=replan_steps) if replan else None
                found = train_planned(
                    planned, folder, train_once, resumed=resume is not None, rule=rule, show=show_places, tell=say
                )
                result, run = found.result, found.planned.run
                facts = {"replans": found.replans, **rows_found(found.planned.plan, folder, tell=say)}
        if timeline is not None:
            draw_timeline(folder, timeline, begun_s)
        _show(run, result, facts, as_json=as_json)


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
) -> TrainingResult:
    """Run to the end, or to where the user or a replanner stops it; where both do, the user's wish counts."""
    from dovetail.cli.stopping import Stopping
    from dovetail.runtime.launch.start import start
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
                tell=view.tell,
            )
        except KeyboardInterrupt:
            say(f"ended at once; go on from the last checkpoint with: dovetail train --resume {folder}")
            raise typer.Exit(130) from None
        if replanner is not None and stopping.is_asked:
            replanner.move = None
        return result


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

    from dovetail.cli.tables import print_summary

    print_summary(run, result)


def take_over_run(run: Run, folder: Path | None) -> None:
    """Have whoever runs a run stop, once this process could go on."""
    from dovetail.runtime.launch.take_over import take_over

    if folder is None:
        raise typer.BadParameter("--take-over goes with --resume")
    take_over(run, folder, say)


SHOW_S = 2.0
"""How often it says where it is."""


def train_alone(run: Run, lock: RunLock, *, resumed: bool, as_json: bool, start_from: Path | None) -> None:
    """Run to the end: a model's exception comes out as it is."""
    import msgspec

    from dovetail.runtime.monitor.metrics_page import MetricsPage
    from dovetail.runtime.prepare.run_folder import prepare
    from dovetail.runtime.single.in_process import InProcess

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
