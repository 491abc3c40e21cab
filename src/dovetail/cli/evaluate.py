"""`dovetail evaluate`: how good a run's model is on data it was not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.data import parse_options
from dovetail.cli.options import AsJson, KeyFile, OnHosts, OtherData, OwnModel, Trust, opened, with_key
from dovetail.cli.output import errors_shown, print_json, print_line, say
from dovetail.cli.predict import own_module


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    data: OtherData = None,
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
    key_file: KeyFile = None,
    trust: Trust = False,
    model: OwnModel = None,
    as_json: AsJson = False,
) -> None:
    """Measure a run's model, as its newest checkpoint has it, on held-out data."""
    if host is not None and on is None:
        raise typer.BadParameter("--host goes with --on")
    with errors_shown(as_json=as_json), opened(on) as fleet:
        import msgspec

        from dovetail.runtime.finished.evaluate import evaluate_run

        with_key(key_file, run, checkpoint)
        if fleet is not None:
            from dovetail.orchestrate.hosts import evaluated_on

            words = [f"--samples={samples}", *([] if data is None else [f"--data={data}"])]
            words += [f"--data-option={each}" for each in data_option or []] + [f"--metric={m}" for m in metric or []]
            words += [] if model is None else [f"--model={model}"]
            found = evaluated_on(fleet, host, run, checkpoint, words, trust=trust, tell=say)
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
                tell=say,
            )
        if as_json:
            print_json(msgspec.json.encode(found))
            return
        say(f"on {found.samples:,} samples: {found.on}")
        for name, value in found.metrics.items():
            print_line(f"{name:<9} {value:.5f}")
        print_line(f"{'loss':<9} {found.loss:.5f}")
        print_line(f"{'model':<9} {found.checkpoint}")
