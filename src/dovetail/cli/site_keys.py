"""`dovetail site-keys`: the keys by which the sites of a run know each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.output import errors_shown, say
from dovetail.errors import DovetailError


def site_keys(
    run_file: Annotated[str, typer.Argument(metavar="RUN", help="A run file with [[site]].")],
    out: Annotated[Path | None, typer.Option(help="The folder; absent: the run file's exchange.keys.")] = None,
) -> None:
    """Make a pair of keys for every site of a run file that has none; bring the folder to every site."""
    with errors_shown():
        from dovetail.orchestrate.run_files import read_run
        from dovetail.runtime.prepare.sites import make_site_keys

        run = read_run(run_file)
        if not run.sites:
            raise DovetailError(f"{run_file} has no sites", hint="add [[site]] to it, one for each")
        folder = out or Path(run.exchange.keys)
        made = make_site_keys(run, folder)
        say(f"{folder}: keys made for {', '.join(made)}" if made else f"{folder} has the keys of every site already")
        say("bring the folder to every site; a site needs its own .secret and everybody's .public")
