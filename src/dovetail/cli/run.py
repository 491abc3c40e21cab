"""`dovetail run`: from a model to a result in one command: profiled, planned, trained as planned, and compared."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
    ShortRuns,
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
    min_samples_per_s: Annotated[
        float, typer.Option(help="The cheapest plan of this speed; absent: the fastest plan that this machine can run.")
    ] = 0.0,
    max_cost_per_hour: Annotated[float | None, typer.Option(help="The fastest plan for so many USD/h.")] = None,
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
    short_runs_s: ShortRuns = 30.0,
    seed: Annotated[int, typer.Option(help="Of initial values, and of the order of the data.")] = 0,
    on: OnHosts = None,
    as_json: AsJson = False,
) -> None:
    """Profile a model on this machine, plan it, train it as planned, and compare what was predicted with what was.

    With --on, it is measured on one machine of each type, and planned for and trained on all of them.
    """
    with errors_shown(as_json=as_json), opened(on) as fleet:
        from dovetail.cli.tables import print_comparison, show_places
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
            max_cost_per_hour=max_cost_per_hour,
            short_runs_s=short_runs_s,
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
            print_comparison(found.facts())
