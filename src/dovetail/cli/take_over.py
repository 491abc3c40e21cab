"""`dovetail train --resume RUN --take-over`: going on with a run that another launcher still runs."""

from __future__ import annotations

from pathlib import Path

import typer

from dovetail.cli.output import say
from dovetail.spec.run import Run


def take_over_run(run: Run, folder: Path | None) -> None:
    """Have whoever runs a run stop, once this process could go on."""
    from dovetail.runtime.launch.take_over import take_over

    if folder is None:
        raise typer.BadParameter("--take-over goes with --resume")
    take_over(run, folder, say)
