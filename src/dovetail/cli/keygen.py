"""`dovetail keygen`: a key that keeps runs encrypted on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.options import AsJson
from dovetail.cli.output import errors_shown, print_json, say


def keygen(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; one that is there is refused.")],
    as_json: AsJson = False,
) -> None:
    """Make a key for `checkpoint.key_file`, in a file that only you can read."""
    with errors_shown(as_json=as_json):
        from dovetail.encryption import make_key_file

        known_by = make_key_file(path)
        say(f"written: {path}, the key {known_by}; without it, what it encrypts is lost: keep a copy elsewhere")
        if as_json:
            import msgspec

            print_json(msgspec.json.encode({"file": str(path), "key": known_by}))
