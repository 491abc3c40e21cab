"""`dovetail evaluate`: how good a run's model is on data it was not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.data import parse_options
from dovetail.cli.options import OnHosts, opened
from dovetail.cli.output import errors_shown, print_json, print_line, say
from dovetail.cli.predict import own_module
from dovetail.errors import DovetailError, did_you_mean

if TYPE_CHECKING:
    from dovetail.runtime.launch.hosts.fleet import Fleet

EVALUATE_S = 24 * 3600.0
"""The longest that a host may take."""


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    data: Annotated[
        str | None, typer.Option(help="Other data: clicks, criteo, csv, parquet, or package.module:function.")
    ] = None,
    data_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the data, e.g. path=day.tsv.gz.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many samples to look at, at most.")] = 100_000,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="auc, log-loss, accuracy, rmse, mae, calibration, recall@K or package.module:function; may be given "
            "several times. Absent: the run's own."
        ),
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint's folder, instead of the newest.")] = None,
    on: OnHosts = None,
    host: Annotated[str | None, typer.Option(help="With --on: the host that does it; absent: the first.")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run code that the folder names even if others can write the folder.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="package.module:Class of a run that began with a module object.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, on one line.")] = False,
) -> None:
    """Measure a run's model, as its newest checkpoint has it, on held-out data."""
    if host is not None and on is None:
        raise typer.BadParameter("--host goes with --on")
    with errors_shown(as_json=as_json), opened(on) as fleet:
        import msgspec

        from dovetail.runtime.finished.evaluate import Evaluation, evaluate_run

        if fleet is not None:
            words = [f"--samples={samples}", *([] if data is None else [f"--data={data}"])]
            words += [f"--data-option={each}" for each in data_option or []] + [f"--metric={m}" for m in metric or []]
            words += [] if model is None else [f"--model={model}"]
            printed = _evaluated_on(fleet, host, run, checkpoint, words, trust=trust)
            found = msgspec.json.decode(printed, type=Evaluation)
        else:
            found = evaluate_run(
                run,
                data=data,
                data_options=parse_options(data_option or []) or None,
                num_samples=samples,
                metrics=metric,
                checkpoint=checkpoint,
                trust=trust,
                model=own_module(model),
            )
        if as_json:
            print_json(msgspec.json.encode(found))
            return
        say(f"on {found.samples:,} samples: {found.on}")
        for name, value in found.metrics.items():
            print_line(f"{name:<9} {value:.5f}")
        print_line(f"{'loss':<9} {found.loss:.5f}")
        print_line(f"{'model':<9} {found.checkpoint}")


def _evaluated_on(
    fleet: Fleet, host: str | None, run: Path, checkpoint: Path | None, words: list[str], *, trust: bool
) -> str:
    """Bring a run to a host and return what the same command prints there."""
    from dovetail.runtime.blueprint import Blueprint
    from dovetail.runtime.launch.hosts.commands import RUN, bring_run, printed_by, started
    from dovetail.runtime.trust import check_trusted

    name = host or fleet.hosts[0].name
    if name not in fleet.remotes:
        raise DovetailError(f"there is no host `{name}`", hint=did_you_mean(name, fleet.remotes))
    blueprint = Blueprint.read(run)
    check_trusted(run, blueprint.run, trust=trust)
    remote = fleet.remotes[name]
    say(f"bringing the run to {name} ...")
    place = bring_run(remote, run, blueprint.run, checkpoint)
    with started(remote, ["evaluate", RUN, "--json", f"--checkpoint={place}", *words]) as command:
        return printed_by(remote, command, timeout_s=EVALUATE_S)
