"""From a run file to a run's folder: blueprint, keys and first checkpoint written, or checked where a run goes on."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from dovetail import logs
from dovetail.data.load import how_made, named_data, open_data, options_known
from dovetail.data.order import window_of
from dovetail.data.schema import Schema
from dovetail.data.source import Source
from dovetail.embedding import Adam, AdamPerRow, Checkpoint
from dovetail.encryption import read_key_file
from dovetail.errors import DovetailError
from dovetail.logs import JOB, wants_json
from dovetail.privacy.keys import NOISE_KEY, SAMPLING_KEY
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint, keep_run_encrypted
from dovetail.runtime.checkpoint import RunManifest
from dovetail.runtime.errors import TrainingError, cannot_write
from dovetail.runtime.fingerprint import Fingerprint
from dovetail.runtime.folder import (
    BLUEPRINT,
    CHECKPOINTS,
    FIXED,
    JOURNAL,
    KEYS,
    LOGS,
    METRICS,
    MODEL,
    REDO,
    ROWS,
    SITES,
    SIZE,
    SPENDING,
    STEPS,
    SUMMARY,
    TEAM,
    TIMELINE,
)
from dovetail.runtime.messages.senders import LAUNCHER
from dovetail.runtime.model.build import Model, build_model, kept_defaults
from dovetail.runtime.model.frozen import check_fixed, tensors_in, write_fixed
from dovetail.runtime.model.kept_model import keep_model
from dovetail.runtime.model.parameters import dense_values, statistics_vector
from dovetail.runtime.prepare.devices import check_device
from dovetail.runtime.prepare.lock import RunLock
from dovetail.runtime.prepare.placement import Elsewhere
from dovetail.runtime.prepare.private import with_private_steps
from dovetail.runtime.prepare.resolve import COORDINATOR, copied, resolve
from dovetail.runtime.prepare.sites import check_address
from dovetail.runtime.prepare.warm_start import FirstValues, Known, fill_first, fixed_from, known_from
from dovetail.runtime.private_folder import remove_private_folder
from dovetail.runtime.worker.rows.row_cache import check_caches
from dovetail.spec.run import Run
from dovetail.transport import make_keys

Tell = Callable[[str], None]


def load_source(run: Run, own: Source | None = None) -> Source:
    """Return the run's data."""
    return own if own is not None else open_data(run.data.name, run.data.options, key_file=run.checkpoint.key_file)


def with_named_data(run: Run) -> Run:
    """Return a run whose data have the names of their formats, where they are named by their paths."""
    data, tried_on = run.data, run.validation
    name, options = named_data(data.name, data.options)
    data = msgspec.structs.replace(data, name=name, options=options)
    if tried_on.name is not None:
        name, options = named_data(tried_on.name, tried_on.options)
        tried_on = msgspec.structs.replace(tried_on, name=name, options=options)
    return msgspec.structs.replace(run, data=data, validation=tried_on)


def with_other_data(run: Run, name: str) -> Run:
    """Return a run on other data, with those of its options that these know too."""
    name, options = named_data(name, {})
    options = options_known(name, run.data.options) | options
    return msgspec.structs.replace(run, data=msgspec.structs.replace(run.data, name=name, options=options))


def with_chosen_data(run: Run, data: Source) -> Run:
    """Return a run that names the columns its data were opened with, so that whoever opens them does as here."""
    made = how_made(data)
    if made is None:
        return run
    options = dict(msgspec.json.decode(msgspec.json.encode(made[1])))
    return msgspec.structs.replace(run, data=msgspec.structs.replace(run.data, name=made[0], options=options))


def prepare(
    run: Run,
    folder: Path,
    *,
    model: nn.Module | None = None,
    source: Source | None = None,
    resume: bool = False,
    timeline: bool = False,
    bare: bool = False,
    lock: RunLock | None = None,
    start_from: FirstValues | None = None,
    elsewhere: Elsewhere | None = None,
    tell: Tell = lambda _: None,
    on_opened: Callable[[Source], None] = lambda _: None,
) -> Blueprint:
    """Make a run's folder ready to be started; with `resume`, go on from its newest checkpoint.

    Workers that are `elsewhere`, on other hosts, have their devices there, and those that others call their addresses.

    A new run begins with the parameters in `start_from` where that is given, else with the model's own.

    The blueprint is written last: a folder without one is no run, and what a start that was cut short left in it is in
    nobody's way. Without a `lock` the folder is locked until this returns. `tell` hears what differs from before, and
    `on_opened` is given the data, which may take long to open.

    The model answers a few samples first. With `bare`, an exception of its own comes out as it is.
    """
    if resume and not folder.is_dir():
        raise TrainingError(f"{folder} is no run", hint="give the folder that `dovetail train` wrote")
    with ExitStack() as things:
        if lock is None:
            things.enter_context(RunLock(folder))
        run = _kept_encrypted(run, folder, goes_on=resume)
        (_check_is_run if resume else _check_is_free)(folder)
        new = [folder / name for name in (CHECKPOINTS, LOGS, KEYS, ROWS) if not (folder / name).exists()]
        try:
            elsewhere = elsewhere or Elsewhere()
            for name, worker in (each for each in run.each_worker() if each[0] not in elsewhere.workers):
                check_device(worker.device, f'device = "{worker.device}" of worker `{name}`')
            check_address(run)
            data = load_source(run, source)
            on_opened(data)
            run = run if source is not None else with_chosen_data(run, data)
            shown = data if source is None else copied(data)
            run = _with_window(run, data.schema, folder if resume else None)
            built = build_model(run, data.schema, model)
            for line in kept_defaults(built, data.schema):
                logs.tell(line)
            blueprint, private = resolve(run, built, shown, timeline=timeline, bare=bare, elsewhere=elsewhere)
            check_caches(blueprint)
            known = None if start_from is None or resume else known_from(start_from)
            if model is not None:
                keep_model(model, folder)
            return _prepare(blueprint, folder, built, private, known=known, resume=resume, tell=tell)
        except BaseException:
            if not resume:
                for made in new:
                    shutil.rmtree(made, ignore_errors=True)
                for name in (FIXED, MODEL):
                    (folder / name).unlink(missing_ok=True)
            raise


def _kept_encrypted(run: Run, folder: Path, *, goes_on: bool) -> Run:
    """Return a run with the whole path of its key, which is there, and have its folders encrypted with it.

    One that goes on has the key that it began with, where it names none.
    """
    key_file = run.checkpoint.key_file
    if key_file is None and goes_on:
        with suppress(TrainingError):
            key_file = Blueprint.read(folder).run.checkpoint.key_file
    if key_file is not None:
        key_file = str(read_key_file(Path(key_file).absolute()).path)
        saving = msgspec.structs.replace(run.checkpoint, key_file=key_file)
        run = msgspec.structs.replace(run, checkpoint=saving)
    keep_run_encrypted(folder, run, given=True)
    if goes_on:
        checkpoints.check_key(folder)
    return run


def _with_window(run: Run, schema: Schema, goes_on: Path | None) -> Run:
    """Return a run that says how many samples are drawn from at once; one that goes on has the order it began with."""
    if run.data.window_samples is not None:
        return run
    window: int | None = window_of(schema)
    if goes_on is not None:
        with suppress(DovetailError):
            window = Blueprint.read(goes_on).run.data.window_samples
    return msgspec.structs.replace(run, data=msgspec.structs.replace(run.data, window_samples=window))


def _prepare(
    blueprint: Blueprint,
    folder: Path,
    built: Model,
    private: Path,
    *,
    known: Known | None,
    resume: bool,
    tell: Tell,
) -> Blueprint:
    """Write everything that processes need to start."""
    try:
        if resume:
            blueprint = _fitted(blueprint, folder, tell)
        else:
            fixed = write_fixed(built, folder, instead={} if known is None else fixed_from(known, built))
            blueprint = msgspec.structs.replace(blueprint, fixed=fixed)
        newest = RunManifest.read(checkpoints.newest(folder)) if resume else None
        blueprint = with_private_steps(blueprint, folder, newest, tell=tell)
        blueprint = _named(blueprint, folder, is_new=not resume)
        first = None if resume else _first_values(built, folder, blueprint.fixed)
        _write_all(blueprint, folder, first, known)
    except OSError as error:
        remove_private_folder(private)
        raise cannot_write(folder, error) from None
    except BaseException:
        remove_private_folder(private)
        raise
    return blueprint


def _first_values(built: Model, folder: Path, fixed: str) -> tuple[Any, Any]:
    """Return the dense parameters, and the running statistics, that a run begins with."""
    return dense_values(built), statistics_vector(built, instead=tensors_in(folder, fixed))


def _named(blueprint: Blueprint, folder: Path, *, is_new: bool) -> Blueprint:
    """Return the blueprint with the id that all processes go by, which a run keeps, and the format of their logs."""
    name = os.environ.get(JOB, "")
    if not name and not is_new:
        with suppress(DovetailError):
            name = Blueprint.read(folder).id
    log = blueprint.run.log
    log = msgspec.structs.replace(log, format=log.format or ("json" if wants_json() else "text"))
    run = msgspec.structs.replace(blueprint.run, log=log)
    return msgspec.structs.replace(blueprint, run=run, id=name or f"{folder.name}-{secrets.token_hex(3)}")


def _write_all(blueprint: Blueprint, folder: Path, first_values: Any, known: Known | None) -> None:
    """Write what processes need to start, the blueprint last; without first values, the run goes on."""
    if first_values is None:
        for name in (ROWS, REDO):  # of a launcher that was killed
            shutil.rmtree(folder / name, ignore_errors=True)
    for name in (LOGS, ROWS):
        (folder / name).mkdir(exist_ok=True)
    if first_values is not None:
        shutil.rmtree(folder / SITES, ignore_errors=True)
        _write_first_checkpoint(blueprint, folder, first_values, known)
    for name in (JOURNAL, SUMMARY, SIZE, TEAM):  # of another launcher: this one begins with the run file's workers
        (folder / name).unlink(missing_ok=True)
    for name in _names(blueprint):
        make_keys(folder / KEYS, name)
    blueprint.write(folder)


def undo(blueprint: Blueprint, folder: Path) -> None:
    """Have a folder hold no run again that was made ready and never started; logs stay where they say something."""
    for name in (BLUEPRINT, FIXED, MODEL, SPENDING, f"{KEYS}/{NOISE_KEY}", f"{KEYS}/{SAMPLING_KEY}"):
        (folder / name).unlink(missing_ok=True)
    for name in (CHECKPOINTS, ROWS, REDO):
        shutil.rmtree(folder / name, ignore_errors=True)
    with suppress(OSError):
        for name in _names(blueprint):
            for path in (folder / KEYS).glob(f"{name}.*"):
                path.unlink()
        (folder / KEYS).rmdir()
    for log in [*(folder / LOGS).glob("*.log"), *(folder / name for name in (JOURNAL, METRICS, STEPS, TIMELINE))]:
        if log.is_file() and not log.stat().st_size:
            log.unlink()
    with suppress(OSError):
        (folder / LOGS).rmdir()


def _check_is_run(folder: Path) -> None:
    """Refuse to go on where nothing was begun."""
    if not checkpoints.all_in(folder):
        Blueprint.read(folder)  # or there is none either
        raise TrainingError(f"{folder} has no checkpoint", hint="start the run anew, in another folder")


def _check_is_free(folder: Path) -> None:
    """Refuse a folder with a run in it."""
    if not is_free(folder):
        raise TrainingError(
            f"{folder} holds a run already", hint=f"go on with --resume {folder} (in Python: resume), or choose another"
        )


def is_free(folder: Path) -> bool:
    """Say whether there is no run in a folder: first values alone are what a start leaves that was cut short."""
    kept = [path.name for path in checkpoints.all_in(folder)]
    return not (folder / BLUEPRINT).exists() and kept in ([], [checkpoints.folder_of(folder, 0).name])


def _write_first_checkpoint(blueprint: Blueprint, folder: Path, first: tuple[Any, Any], known: Known | None) -> None:
    """Write the state before the first step: dense parameters as the model has them and no rows, or those known."""
    partial = checkpoints.begin(folder, 0)
    values, statistics = first
    checkpoints.write_statistics(statistics, partial)
    num_servers = 0
    if known is not None:
        values, num_servers = fill_first(known, blueprint, partial, values)
    checkpoints.save_dense(partial, 0, 0, values, {})
    files = checkpoints.checksums_in(partial, only="**/*")
    manifest = RunManifest(
        step=0,
        position=0,
        dense_steps=0,
        num_servers=num_servers,
        samples=blueprint.samples,
        files=files,
        fingerprint=Fingerprint.of(blueprint),
    )
    checkpoints.publish(partial, manifest)


def _fitted(blueprint: Blueprint, folder: Path, tell: Tell) -> Blueprint:
    """Return the blueprint as the newest checkpoint needs it; refuse to go on with another model, data or order."""
    newest = checkpoints.newest(folder, tell=tell)
    manifest = RunManifest.read(newest)
    if manifest.fingerprint is not None:
        before = manifest.fingerprint.model
        blueprint = msgspec.structs.replace(blueprint, first_seed=before.seed, fixed=before.fixed)
        if before.own_loss != blueprint.own_loss:
            raise TrainingError(
                f"{folder} was trained with the loss `{before.own_loss or before.loss}`, an object of a Python "
                "program or its name, and this is another",
                hint="give it again: resume(folder, model=..., loss=...)",
            )
    for difference in manifest.check_fits(newest, Fingerprint.of(blueprint)):
        tell(f"{difference}")
    if blueprint.row_optimizer["name"] == Adam.name and any(map(_counts_own_steps, manifest.tables_in(newest))):
        tell(
            "rows go on as they began, with a count of steps of their own (`adam-per-row`): `adam` was that in the "
            "version before"
        )
    check_fixed(folder, blueprint.fixed)
    _check_is_not_over(blueprint, manifest.in_epochs_of(blueprint.samples), folder)
    return blueprint


def _counts_own_steps(table: Path) -> bool:
    """Say whether the rows of a table in a checkpoint count their own steps."""
    return bool(Checkpoint.newest(table)[-1].settings.optimizer["name"] == AdamPerRow.name)


def _check_is_not_over(blueprint: Blueprint, manifest: RunManifest, folder: Path) -> None:
    """Refuse fewer epochs than are done."""
    done, epochs = manifest.position // blueprint.samples, blueprint.run.training.epochs
    if manifest.position > blueprint.samples * epochs:
        raise TrainingError(
            f"{folder} is done with {done} epoch{'' if done == 1 else 's'}, and epochs is {epochs}",
            hint=f"train longer: dovetail train --resume {folder} --epochs {done + 1}",
        )


def _names(blueprint: Blueprint) -> list[str]:
    """Return what the processes of a run are called."""
    names = [LAUNCHER, COORDINATOR, *(spec.name for spec in blueprint.servers)]
    return names + [name for name, _ in blueprint.run.each_worker()]
