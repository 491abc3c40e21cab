"""From a run file to a run's folder: sizes worked out, defaults filled in, keys made, the first checkpoint written."""

from __future__ import annotations

import pickle
import shutil
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from dovetail.data.load import load_data
from dovetail.data.source import Source
from dovetail.embedding import ROW_OPTIMIZERS, make_row_optimizer
from dovetail.embedding.row_optimizer import described as row_described
from dovetail.errors import did_you_mean
from dovetail.models.metrics import make_metric
from dovetail.models.recipe import Recipe
from dovetail.models.schedules import make_schedule
from dovetail.models.whole import WholeModel
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint, ServerSpec
from dovetail.runtime.checkpoint import Manifest
from dovetail.runtime.dense.optimizer import described, make_dense_optimizer
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
    ROWS,
    STEPS,
    SUMMARY,
    TIMELINE,
)
from dovetail.runtime.launch.guard import travelling
from dovetail.runtime.launch.lock import RunLock
from dovetail.runtime.messages.senders import LAUNCHER
from dovetail.runtime.model.build import Model, build_model
from dovetail.runtime.model.first_look import first_look
from dovetail.runtime.model.fixed import check_fixed, write_fixed
from dovetail.runtime.model.parameters import dense_entries, dense_values, norms_of, sparse_modules
from dovetail.runtime.private_folder import make_private_folder, remove_private_folder
from dovetail.runtime.sealed import checksum_of_bytes
from dovetail.spec.run import Run
from dovetail.transport import make_keys

ROWS_AS = {"sgd": "sgd", "momentum": "sgd", "adagrad": "adagrad", "adam": "adam", "adamw": "adam"}
"""What updates rows unless the run says otherwise: only touched rows, so no momentum and no decay."""
COORDINATOR = "coordinator"
MOST_COPIED_BYTES = 1 << 28
FIRST_SAMPLES = 16
"""How many samples are read to know the data again."""
Tell = Callable[[str], None]


def load_source(run: Run, own: Source | None = None) -> Source:
    """Return the run's data."""
    return own if own is not None else load_data(run.data.name, **run.data.options)


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
    tell: Tell = lambda _: None,
) -> Blueprint:
    """Make a run's folder ready to be started; with `resume`, go on from its newest checkpoint.

    The blueprint is written last: a folder without one is no run, and what a start that was cut short left in it is in
    nobody's way. Without a `lock` the folder is locked until this returns. `tell` hears what differs from before.

    The model answers a few samples first. With `bare`, an exception of its own comes out as it is.
    """
    if resume and not folder.is_dir():
        raise TrainingError(f"{folder} is no run", hint="give the folder that `dovetail train` wrote")
    with ExitStack() as things:
        if lock is None:
            things.enter_context(RunLock(folder))
        (_check_is_run if resume else _check_is_free)(folder)
        new = [folder / name for name in (CHECKPOINTS, LOGS, KEYS, ROWS) if not (folder / name).exists()]
        try:
            data = load_source(run, source)
            shown = data if source is None else _copied(data)
            built = build_model(run, data.schema, model)
            blueprint, private = _planned(run, built, shown, timeline=timeline, bare=bare)
            return _prepare(blueprint, folder, built, private, resume=resume, tell=tell)
        except BaseException:
            if not resume:
                for made in new:
                    shutil.rmtree(made, ignore_errors=True)
                (folder / FIXED).unlink(missing_ok=True)
            raise


def _planned(run: Run, built: Model, data: Source, *, timeline: bool, bare: bool) -> tuple[Blueprint, Path]:
    """Return a new run's blueprint, worked out from its model and a look at its data, and its private folder."""
    tables, dense = tuple(each.spec() for each in sparse_modules(built)), dense_entries(built)
    samples, own_loss = _samples(run, data), _own_loss(built, run)
    task = first_look(built, data, samples=samples, loss=run.model.loss, bare=bare)
    run = msgspec.structs.replace(run, model=msgspec.structs.replace(run.model, loss=task.loss))
    if run.training.tail is None and norms_of(built):  # pieces of a tail would be too small to normalise by
        run = msgspec.structs.replace(run, training=msgspec.structs.replace(run.training, tail=0.0))
    metrics = task.metrics if run.model.metrics is None else run.model.metrics
    for name in metrics:
        make_metric(name)
    first_samples = _checksum_of_first(data, samples)
    private = make_private_folder()
    try:
        blueprint = _blueprint(run, samples, built.recipe, private, timeline=timeline)
    except BaseException:
        remove_private_folder(private)
        raise
    blueprint = msgspec.structs.replace(
        blueprint,
        tables=tables,
        dense=dense,
        metrics=metrics,
        own_loss=own_loss,
        numbers=data.schema.dense,
        slots=tuple(slot.name for slot in data.schema.slots),
        first_samples=first_samples,
    )
    return blueprint, private


def _prepare(blueprint: Blueprint, folder: Path, built: Model, private: Path, *, resume: bool, tell: Tell) -> Blueprint:
    """Write everything that processes need to start."""
    try:
        if resume:
            blueprint = _fitted(blueprint, folder, tell)
        else:
            blueprint = msgspec.structs.replace(blueprint, fixed=write_fixed(built, folder))
        _write_all(blueprint, folder, None if resume else dense_values(built))
    except OSError as error:
        remove_private_folder(private)
        raise cannot_write(folder, error) from None
    except BaseException:
        remove_private_folder(private)
        raise
    return blueprint


def _write_all(blueprint: Blueprint, folder: Path, first_values: Any) -> None:
    """Write what processes need to start, the blueprint last; without first values, the run goes on."""
    if first_values is None:
        shutil.rmtree(folder / ROWS, ignore_errors=True)  # of a launcher that was killed
    for name in (LOGS, ROWS):
        (folder / name).mkdir(exist_ok=True)
    if first_values is not None:
        _write_first_checkpoint(blueprint, folder, first_values)
    for name in (JOURNAL, SUMMARY):
        (folder / name).unlink(missing_ok=True)
    for name in _names(blueprint):
        make_keys(folder / KEYS, name)
    blueprint.write(folder)


def undo(blueprint: Blueprint, folder: Path) -> None:
    """Have a folder hold no run again that was made ready and never started; logs stay where they say something."""
    for name in (BLUEPRINT, FIXED):
        (folder / name).unlink(missing_ok=True)
    for name in (CHECKPOINTS, ROWS):
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
            f"{folder} holds a run already", hint=f"go on with --resume {folder}, or choose another folder"
        )


def is_free(folder: Path) -> bool:
    """Say whether there is no run in a folder: first values alone are what a start leaves that was cut short."""
    kept = [path.name for path in checkpoints.all_in(folder)]
    return not (folder / BLUEPRINT).exists() and kept in ([], [checkpoints.folder_of(folder, 0).name])


def _copied(data: Source) -> Source:
    """Return a copy of a source of the user's own, to be read from here.

    It goes to workers as it is, and reading might open what cannot travel. One that is too large to be copied holds
    its samples, and one that cannot be stays in this process: those are read themselves.
    """
    try:
        copied = pickle.dumps(travelling(data))
        return data if len(copied) > MOST_COPIED_BYTES else pickle.loads(copied)  # noqa: S301 - of this process
    except Exception:  # whatever a source of the user's own raises
        return data


def _checksum_of_first(data: Source, samples: int) -> str:
    """Return a checksum of the first samples, or nothing where they cannot be read: workers will say why."""
    try:
        batch = data.read(0, min(samples, FIRST_SAMPLES))
        return checksum_of_bytes(b"".join(tensor.numpy().tobytes() for tensor in batch.tensors()))
    except Exception:  # whatever a source of the user's own raises
        return ""


def _own_loss(built: Model, run: Run) -> str:
    """Return the name of a loss that is an object of a Python program."""
    if run.model.loss is not None or not isinstance(built, WholeModel) or built.loss is None:
        return ""
    inner = getattr(built.loss, "inner", built.loss)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _samples(run: Run, data: Source) -> int:
    """Return how many samples an epoch has."""
    samples = run.data.samples or data.num_samples
    if samples is None:
        raise TrainingError("the data have no end", hint="say how many samples an epoch has: data.samples")
    if data.num_samples is not None and samples > data.num_samples:
        raise TrainingError(
            f"data.samples is {samples}, and there are {data.num_samples}", hint="lower it, or leave it out"
        )
    return samples


def _blueprint(run: Run, samples: int, recipe: Recipe, private: Path, *, timeline: bool) -> Blueprint:
    """Fill in what the run file leaves to the model, the data and this machine."""
    name = run.optimizer.name or recipe.optimizer
    rate = run.optimizer.learning_rate or recipe.learning_rate
    optimizer = make_dense_optimizer(name, learning_rate=rate)
    rows = run.optimizer.rows or ROWS_AS[optimizer.name]
    if rows not in ROW_OPTIMIZERS:
        raise TrainingError(
            f"servers have no optimizer `{rows}` for embedding rows", hint=did_you_mean(rows, ROW_OPTIMIZERS)
        )
    row_optimizer = make_row_optimizer(rows, learning_rate=run.optimizer.rows_learning_rate or rate)
    make_schedule(run.optimizer.schedule.name, **run.optimizer.schedule.settings())
    address = run.network.address
    return Blueprint(
        run=run,
        tables=(),
        dense=(),
        samples=samples,
        batch=run.training.batch or recipe.batch,
        optimizer=described(optimizer),
        row_optimizer=row_described(row_optimizer),
        coordinator=_server_spec(COORDINATOR, address, private),
        servers=tuple(_server_spec(f"server-{number}", address, private) for number in range(run.servers.count)),
        timeline=timeline,
        lanes=str(private) if run.network.shared_memory else None,
    )


def _server_spec(name: str, address: str, private: Path) -> ServerSpec:
    """Return the addresses of a process that others call."""
    return ServerSpec(
        name=name, address=f"tcp://{address}:{_free_port(address)}", local_address=f"ipc://{private}/{name}"
    )


def _free_port(address: str) -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise TrainingError(
                f"nothing can listen on {address}: {error}", hint="set network.address to one of this machine's own"
            ) from None
        return int(probe.getsockname()[1])


def _write_first_checkpoint(blueprint: Blueprint, folder: Path, values: Any) -> None:
    """Write the state before the first step: dense parameters as the model has them, no rows."""
    partial = checkpoints.begin(folder, 0)
    checkpoints.save_dense(partial, 0, 0, values, {})
    files = checkpoints.checksums_in(partial, only="dense-*")
    manifest = Manifest(
        step=0,
        position=0,
        dense_steps=0,
        num_servers=0,
        samples=blueprint.samples,
        files=files,
        fingerprint=Fingerprint.of(blueprint),
    )
    checkpoints.publish(partial, manifest)


def _fitted(blueprint: Blueprint, folder: Path, tell: Tell) -> Blueprint:
    """Return the blueprint as the newest checkpoint needs it; refuse to go on with another model, data or order."""
    newest = checkpoints.newest(folder, tell=tell)
    manifest = Manifest.read(newest)
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
    check_fixed(folder, blueprint.fixed)
    return blueprint


def _names(blueprint: Blueprint) -> list[str]:
    """Return what the processes of a run are called."""
    names = [LAUNCHER, COORDINATOR, *(spec.name for spec in blueprint.servers)]
    return names + [name for name, _ in blueprint.run.each_worker()]
