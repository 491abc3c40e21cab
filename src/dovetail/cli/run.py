"""`dovetail run`: from a model to a result in one command: profiled, planned, trained as planned, and compared."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dovetail.cli.data import parse_options
from dovetail.cli.options import (
    AsJson,
    DataName,
    DataOptions,
    ModelName,
    ModelOptions,
    OnHosts,
    Prices,
    ReplanAbove,
    ReplanSteps,
    opened,
    parsed_prices,
)
from dovetail.cli.output import errors_shown, print_json, say

if TYPE_CHECKING:
    from dovetail.orchestrate.replanning import Replanner
    from dovetail.runtime.finished.result import TrainingResult
    from dovetail.runtime.prepare.lock import RunLock
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
    as_json: AsJson = False,
) -> None:
    """Profile a model on this machine, plan it, train it as planned, and compare what was predicted with what was.

    With --on, it is measured on one machine of each type, and planned for and trained on all of them.
    """
    with errors_shown(as_json=as_json), opened(on) as fleet:
        from dovetail.cli.tables import show_places
        from dovetail.cli.train import draw_timeline, train_watched
        from dovetail.orchestrate.pipeline import run as run_all
        from dovetail.orchestrate.replanning import ReplanRule

        def train_once(run: Run, lock: RunLock, resumed: bool, replanner: Replanner | None) -> TrainingResult:
            return train_watched(
                run, lock, resumed=resumed, timeline=timeline is not None, replanner=replanner, fleet=fleet
            )

        begun_s = time.time()
        found = run_all(
            model,
            data,
            folder=out,
            model_options=parse_options(option or []),
            data_options=parse_options(data_option or []),
            samples=samples,
            batch=batch,
            seed=seed,
            min_samples_per_s=min_samples_per_s,
            usd_per_hour=parsed_prices(price),
            max_stages=max_stages,
            split_stages=split_stages,
            dense=dense,
            replan=ReplanRule(above=replan_above, steps=replan_steps) if replan else None,
            on=fleet,
            tell=say,
            show=show_places,
            train=train_once,
        )
        if timeline is not None:
            draw_timeline(found.result.folder, timeline, begun_s)
        if as_json:
            import msgspec

            print_json(msgspec.json.encode(found.facts()))
        else:
            _print(found.facts())


def _print(compared: dict[str, Any]) -> None:
    """Print the comparison, stage by stage."""
    from dovetail.cli.tables import make_table, wide_console
    from dovetail.units import format_duration

    table = make_table(("stage", "layers", "on", "predicted a batch", "computed a batch"), text=("layers", "on"))
    for number, stage in enumerate(compared["stages"]):
        seconds = [stage[f"{kind}_seconds_per_batch"] for kind in ("predicted", "measured")]
        table.add_row(
            str(number),
            f"{stage['first_layer']} to {stage['last_layer']}",
            f"{stage['units']} x {stage['resource']}",
            *("-" if each is None else format_duration(each) for each in seconds),
        )
    whole = [compared[f"{kind}_seconds_per_batch"] for kind in ("predicted", "measured")]
    table.add_row("all", "", "", *("-" if each is None else format_duration(each) for each in whole))
    console = wide_console()
    console.print(table)
    computed = [stage["measured_seconds_per_batch"] for stage in compared["stages"]]
    if whole[1] is not None and computed and None not in computed:
        console.print(
            f"of the {format_duration(whole[1])} that a batch took, its slowest stage computed for "
            f"{format_duration(max(computed))}; the rest is reading, rows, sums and waiting for others",
            highlight=False,
            soft_wrap=True,
        )
    predicted, measured = compared["predicted_samples_per_s"], compared["measured_samples_per_s"]
    console.print(
        f"predicted {predicted:,.0f} samples/s, measured {measured:,.0f} ({measured / predicted:.2f}x); "
        f"{compared['cost_per_hour']:.3f} USD/h\n"
        f"problem.json, plan.json, measured-problem.json and the run are in {compared['folder']}",
        highlight=False,
        soft_wrap=True,
    )
