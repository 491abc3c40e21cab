"""Which run a command line means: a file or a model's name, with some keys set otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.errors import DovetailError
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

    Where `data`, or the setting data.name, name other data than a model is trained on by default, or than a run file
    names, those options go that the other data do not know.
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
    _check_one_process(settings, workers)
    other = settings.get("data.name", data)
    settings = {key: value for key, value in settings.items() if key != "data.name"}
    if other is not None and other != run.data.name:
        if word is not None and not is_run_file(word):
            run = msgspec.structs.replace(run, data=RunData(name=other))
        else:
            from dovetail.runtime.prepare.run_folder import with_other_data  # it loads torch

            run = with_other_data(run, other)
    if workers is not None:
        settings = {**settings, "worker": alike_workers(run, workers)}
    return with_settings(run, settings, place=FLAGS) if settings else run


def _check_one_process(settings: dict[str, Any], workers: int | None) -> None:
    """Refuse several processes, or a mode of several, where one is asked for too."""
    asked = {
        f"--workers {workers}": (workers or 1) > 1,
        f"--servers {settings.get('servers.count')}": "servers.count" in settings,
        f"--mode {settings.get('training.mode')}": settings.get("training.mode", "sync") != "sync",
    }
    place = settings.get("table.place")
    if place in ("local", "device") and any(asked.values()):
        raise DovetailError(
            f"--table {place} is one process, and {' '.join(word for word, is_so in asked.items() if is_so)} asks for "
            "several",
            hint="leave one of them away: rows of several workers lie on servers, or with --table sharded on them",
        )


def says_dense(word: str | None, settings: dict[str, Any]) -> bool:
    """Say whether someone chose where dense parameters are kept: the flags, the file, or the run that goes on."""
    from dovetail.spec.files import read_table

    if word is None or "training.dense" in settings:
        return True
    if not is_run_file(word):
        return False
    training = read_table(Path(word)).get("training")
    return isinstance(training, dict) and "dense" in training


def settings_of(flags: dict[str, Any], words: Sequence[str], data_options: Sequence[str] = ()) -> dict[str, Any]:
    """Return what flags, `--set` and `--data-option` words set, by dotted key; flags not given are left out."""
    from dovetail.spec.run import parse_setting

    options = dict(parse_setting(word, example="--data-option path=day.tsv.gz") for word in data_options)
    given = {key: value for key, value in flags.items() if value is not None}
    return {f"data.options.{key}": value for key, value in options.items()} | given | dict(map(parse_setting, words))
