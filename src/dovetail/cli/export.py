"""`dovetail export`: a run's model in files that need no Dovetail."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.options import AsJson, KeyFile, OwnModel, Trust, with_key
from dovetail.cli.output import errors_shown, print_json, say
from dovetail.cli.predict import own_module


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint's folder, instead of the newest.")] = None,
    key_file: KeyFile = None,
    trust: Trust = False,
    model: OwnModel = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's model: parameters as safetensors, and a program that PyTorch runs without Dovetail."""
    with errors_shown(as_json=as_json):
        import msgspec

        from dovetail.runtime.finished.export import export_run

        with_key(key_file, run, checkpoint)
        made = export_run(run, out, checkpoint=checkpoint, model=own_module(model), trust=trust)
        if made.why_no_program:
            say(f"no model.pt2: torch.export could not follow this model ({made.why_no_program})")
        for name, length in made.lengths.items():
            say(f"model.pt2 takes {length} values of `{name}` a sample; {made.folder}/read_rows.py makes so many")
        if made.least_samples > 1:
            say(f"model.pt2 takes {made.least_samples} samples at least: to score one, give it twice")
        say(f"written: {', '.join(made.files)} in {made.folder}, {made.parameters:,} parameters")
        if as_json:
            print_json(msgspec.json.encode(made))
