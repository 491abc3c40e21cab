"""Which run a command line means: a file or a model's name, with some keys set otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.orchestrate.run_files import alike_workers, is_run_file, read_run

if TYPE_CHECKING:
    from dovetail.spec.run import Run

FLAGS = "the command line"
"""What errors call the flags."""


def find_run(
    word: str | None,
    resume: Path | None,
    settings: dict[str, Any],
    workers: int | None,
    *,
    data: str | None = None,
    trust: bool = False,
) -> Run:
    """Return the run that is meant, with the flags' settings in it; a folder must be one's own, or trusted.

    Other `data` than the made ones that a model is trained on by default have none of their options.
    """
    import msgspec

    from dovetail.runtime.blueprint import Blueprint
    from dovetail.runtime.trust import check_trusted
    from dovetail.spec.run import RunData, with_settings

    if word is None and resume is not None:
        run = Blueprint.read(resume).run
        check_trusted(resume, run, trust=trust)
    else:
        run = read_run(word or "")
    if data is not None and data != run.data.name:
        if word is not None and not is_run_file(word):
            run = msgspec.structs.replace(run, data=RunData())
        settings = {"data.name": data, **settings}
    if workers is not None:
        settings = {**settings, "worker": alike_workers(run, workers)}
    return with_settings(run, settings, place=FLAGS) if settings else run


def says_dense(word: str | None, settings: dict[str, Any]) -> bool:
    """Say whether someone chose where dense parameters are kept: the flags, the file, or the run that goes on."""
    from dovetail.spec.files import read_table

    if word is None or "training.dense" in settings:
        return True
    if not is_run_file(word):
        return False
    training = read_table(Path(word)).get("training")
    return isinstance(training, dict) and "dense" in training


def settings_of(flags: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return what flags and `--set` words set, by dotted key; flags that were not given are left out."""
    from dovetail.spec.run import parse_setting

    return {key: value for key, value in flags.items() if value is not None} | dict(map(parse_setting, words))
