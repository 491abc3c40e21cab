"""`dovetail run`: from a model to a result in one command: profiled, planned, trained as planned, and compared."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dovetail.cli.data import parse_options
from dovetail.cli.options import (
    DataName,
    DataOptions,
    ModelName,
    ModelOptions,
    OnHosts,
    Prices,
    ReplanAbove,
    ReplanSteps,
    opened,
)
from dovetail.cli.output import errors_shown, print_json, say

if TYPE_CHECKING:
    from dovetail.cli.replanning import PlannedResult, Replanner
    from dovetail.runtime.finished.result import TrainingResult
    from dovetail.runtime.planned.from_plan import Machine
    from dovetail.spec import Plan, Problem
    from dovetail.spec.run import Run


def run(
    model: ModelName,
    min_samples_per_s: Annotated[float, typer.Option(help="The speed that the plan has to reach.")] = 0.0,
    samples: Annotated[int, typer.Option(min=1, help="How many samples to train on.")] = 200_000,
    batch: Annotated[int, typer.Option(help="Samples of one step over all workers.")] = 4096,
    out: Annotated[Path | None, typer.Option(help="The folder of all that comes of it; absent: runs/MODEL-N.")] = None,
    option: ModelOptions = None,
    data: DataName = "clicks",
    data_option: DataOptions = None,
    price: Prices = None,
    max_stages: Annotated[int | None, typer.Option(min=1, help="At most so many stages.")] = None,
    split_stages: Annotated[bool, typer.Option("--split-stages", help="Allow cuts inside one type.")] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Draw what every worker did when: FILE.html, .svg or .png.")
    ] = None,
    dense: Annotated[
        Literal["ring", "ps"] | None,
        typer.Option(help="Where dense parameters are kept: by a stage's workers in a ring, or on servers."),
    ] = None,
    replan: Annotated[
        bool, typer.Option("--replan", help="Plan again where stages do not take what was predicted.")
    ] = False,
    replan_above: ReplanAbove = 0.2,
    replan_steps: ReplanSteps = 20,
    seed: Annotated[int, typer.Option(help="Of initial values, and of the order of the data.")] = 0,
    on: OnHosts = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, on one line.")] = False,
) -> None:
    """Profile a model on this machine, plan it, train it as planned, and compare what was predicted with what was.

    With --on, it is measured on one machine of each type, and planned for and trained on all of them.
    """
    with errors_shown(as_json=as_json), opened(on) as fleet:
        from dovetail.cli.measured import keep_plan
        from dovetail.cli.planned import placed
        from dovetail.cli.replanning import ReplanRule, train_planned
        from dovetail.cli.run_file import lock_free_folder, model_run
        from dovetail.cli.train import draw_timeline, train_watched
        from dovetail.runtime.planned.from_plan import Machine
        from dovetail.runtime.prepare.lock import RunLock

        machine = Machine.this() if fleet is None else fleet.machine
        chosen = model_run(
            model,
            model_options=parse_options(option or []),
            data=data,
            data_options=parse_options(data_option or []),
            samples=samples,
            batch=batch,
            seed=seed,
        )
        if fleet is None:
            problem = _profiled(chosen, machine, price or [], min_samples_per_s)
        else:
            from dovetail.cli.hosts_profile import profiled_on

            chosen, dense = fleet.settled(chosen), dense or "ps"  # a ring across hosts needs a word of trust
            problem = profiled_on(fleet, chosen, price or [], min_samples_per_s)
        plan = _planned(problem, max_stages=max_stages, split_stages=split_stages)
        planned = placed(chosen, plan, problem, machine, dense=dense)
        with RunLock(out) if out is not None else lock_free_folder(chosen) as lock:

            def train_once(run: Run, resumed: bool, replanner: Replanner | None) -> TrainingResult:
                return train_watched(
                    run,
                    lock,
                    resumed=resumed,
                    timeline=timeline is not None,
                    start_from=None,
                    loggers=[],
                    replanner=replanner,
                    fleet=fleet,
                )

            begun_s = time.time()
            rule = ReplanRule(above=replan_above, steps=replan_steps) if replan else None
            found = train_planned(planned, lock.folder, train_once, resumed=False, rule=rule)
            keep_plan(plan, problem, lock.folder)
            if timeline is not None:
                draw_timeline(lock.folder, timeline, begun_s)
        compared = _compared(problem, found)
        if as_json:
            import msgspec

            print_json(msgspec.json.encode(compared))
        else:
            _print(compared)


def _profiled(run: Run, machine: Machine, prices: list[str], min_samples_per_s: float) -> Problem:
    """Measure the model on what this machine has."""
    import msgspec

    from dovetail.cli.profile import links_between, network_speed, types_at_hand
    from dovetail.profiler.profile import profile
    from dovetail.profiler.request import ProfileRequest
    from dovetail.spec import Training

    batch = run.training.batch or 4096
    at_hand = [
        msgspec.structs.replace(each, limit=machine.gpus if each.kind == "gpu" else machine.cores)
        for each in types_at_hand(prices)
    ]
    network = network_speed(None)
    found = profile(
        ProfileRequest(
            model=run.model.name,
            batch=batch,
            model_options=run.model.options,
            data=run.data.name,
            data_options=run.data.options,
            seed=run.training.seed,
        ),
        training=Training(samples=run.data.samples or batch, batch=batch, min_samples_per_s=min_samples_per_s),
        at_hand=at_hand,
        links=links_between(at_hand, [], network),
        network_bytes_per_s=network.bytes_per_s,
        say=lambda message: say(f"{message} ..."),
    )
    return found.problem


def _planned(problem: Problem, *, max_stages: int | None, split_stages: bool) -> Plan:
    """Return the cheapest plan at the speed that is asked for."""
    from dovetail.planner.demands import Demands
    from dovetail.planner.methods import plan_with

    say("planning ...")
    demands = Demands(max_stages=max_stages, split_stages=split_stages)
    return plan_with("exact", problem, demands, clock=time.perf_counter)


def _compared(problem: Problem, found: PlannedResult) -> dict[str, Any]:
    """Return what was predicted beside what was measured, of the plan that the run ended with."""
    from dovetail.cli.measured import took
    from dovetail.runtime.folder import RunSummary

    result, planned = found.result, found.planned
    measured = RunSummary.read(result.folder).stages
    samples = measured[0].samples if measured else 0
    seconds = [
        each.seconds(problem.training.batch) for each in took(planned.stages, [s.busy_s for s in measured], samples)
    ]
    rows = [
        {
            "resource": stage.resource,
            "first_layer": stage.first_layer,
            "last_layer": stage.last_layer,
            "units": stage.units,
            "predicted_seconds_per_batch": stage.seconds_per_batch,
            "measured_seconds_per_batch": seconds[number] if number < len(seconds) else None,
        }
        for number, stage in enumerate(planned.stages)
    ]
    return {
        "folder": str(result.folder),
        "predicted_samples_per_s": planned.plan.samples_per_s,
        "measured_samples_per_s": result.samples_per_s,
        "cost_per_hour": planned.plan.cost_per_hour,
        "samples": result.samples,
        "loss": result.loss,
        "stages": rows,
        "replans": found.replans,
    }


def _print(compared: dict[str, Any]) -> None:
    """Print the comparison, stage by stage."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from dovetail.cli.tables import wide_console
    from dovetail.units import format_duration

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("stage", "layers", "on", "predicted a batch", "measured a batch"):
        table.add_column(heading, justify="left" if heading in ("layers", "on") else "right", no_wrap=True)
    for number, stage in enumerate(compared["stages"]):
        seconds = [stage[f"{kind}_seconds_per_batch"] for kind in ("predicted", "measured")]
        table.add_row(
            str(number),
            f"{stage['first_layer']} to {stage['last_layer']}",
            f"{stage['units']} x {stage['resource']}",
            *("-" if each is None else format_duration(each) for each in seconds),
        )
    console = wide_console()
    console.print(table)
    predicted, measured = compared["predicted_samples_per_s"], compared["measured_samples_per_s"]
    console.print(
        f"predicted {predicted:,.0f} samples/s, measured {measured:,.0f} ({measured / predicted:.2f}x); "
        f"{compared['cost_per_hour']:.3f} USD/h\n"
        f"problem.json, plan.json, measured-problem.json and the run are in {compared['folder']}",
        highlight=False,
        soft_wrap=True,
    )
