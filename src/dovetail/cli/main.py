"""The command `dovetail`: every part reachable, none imported before it is needed."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from dovetail.cli.catalogue import catalogue
from dovetail.cli.check import check
from dovetail.cli.dashboard import dashboard
from dovetail.cli.data import data
from dovetail.cli.doctor import doctor
from dovetail.cli.evaluate import evaluate
from dovetail.cli.examples import examples_of
from dovetail.cli.export import export
from dovetail.cli.jobs import cancel, cluster, drain, jobs, logs, resize, submit
from dovetail.cli.join import join
from dovetail.cli.keygen import keygen
from dovetail.cli.launch import launch
from dovetail.cli.link import link
from dovetail.cli.plan import plan
from dovetail.cli.predict import predict
from dovetail.cli.privacy import privacy
from dovetail.cli.problem import problem
from dovetail.cli.profile import profile
from dovetail.cli.run import run
from dovetail.cli.serve import serve
from dovetail.cli.simulate import simulate
from dovetail.cli.site_keys import site_keys
from dovetail.cli.table import table
from dovetail.cli.timeline import timeline
from dovetail.cli.trace import trace
from dovetail.cli.train import train
from dovetail.version import __version__

app = typer.Typer(
    name="dovetail",
    help="Train deep models on machines that do not match.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dovetail {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train deep models on machines that do not match."""


app.command()(plan)
app.command()(check)
app.command()(profile)
app.command()(run)
app.command()(train)
app.command()(privacy)
app.command()(join)
app.command()(launch)
app.command("site-keys")(site_keys)
app.command()(keygen)
app.command()(evaluate)
app.command()(predict)
app.command()(export)
app.command()(timeline)
app.command()(dashboard)
app.command()(catalogue)
app.command()(simulate)
app.command()(serve)
app.command()(submit)
app.command()(jobs)
app.command()(logs)
app.command()(cancel)
app.command()(resize)
app.command()(drain)
app.command()(cluster)
app.command()(doctor)
app.command()(table)
app.add_typer(trace, name="trace")
app.add_typer(problem, name="problem")
app.add_typer(data, name="data")
app.add_typer(link, name="link")
for _each in app.registered_commands:
    _each.epilog = examples_of(str(_each.name or getattr(_each.callback, "__name__", "")))


def main() -> None:
    """Run the command line."""
    from dovetail.logs import JOB, json_lines, wants_json

    with json_lines("launcher", os.environ.get(JOB), wanted=wants_json()):
        app()
