"""From a run file to a run's folder: sizes worked out, defaults filled in, keys made, the first checkpoint written."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from dovetail.data.load import load_data
from dovetail.data.source import Source
from dovetail.embedding import ROW_OPTIMIZERS, make_row_optimizer
from dovetail.embedding.row_optimizer import described as row_described
from dovetail.errors import did_you_mean
from dovetail.models.recipe import Recipe
from dovetail.models.schedules import make_schedule
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint, ServerSpec
from dovetail.runtime.checkpoint import Manifest
from dovetail.runtime.dense.groups import check_groups
from dovetail.runtime.dense.optimizer import described, make_dense_optimizer
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.fingerprint import fingerprint_of
from dovetail.runtime.folder import BLUEPRINT, CHECKPOINTS, JOURNAL, KEYS, LOGS, ROWS
from dovetail.runtime.launch.devices import check_device
from dovetail.runtime.launch.warm_start import Start, fill_first, known_from
from dovetail.runtime.model.build import build_graph
from dovetail.runtime.model.parameters import dense_entries, dense_values, sparse_modules
from dovetail.spec.run import Run
from dovetail.transport import make_keys

ROWS_AS = {"sgd": "sgd", "momentum": "sgd", "adagrad": "adagrad", "adam": "adam", "adamw": "adam"}
"""What updates rows unless the run says otherwise: only touched rows, so no momentum and no decay."""
LAUNCHER = "launcher"
COORDINATOR = "coordinator"
PRIVATE_PREFIX = "dovetail-"


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
    start_from: Start | None = None,
) -> Blueprint:
    """Make a run's folder ready to be started; with `resume`, go on from its newest checkpoint.

    A new run begins with the parameters in `start_from` where that is given, else with the model's own.
    """
    if not resume and (folder / CHECKPOINTS).exists():
        raise TrainingError(
            f"{folder} holds a run already", hint=f"go on with --resume {folder}, or choose another folder"
        )
    for name, worker in run.each_worker():
        check_device(worker.device, f'device = "{worker.device}" of worker `{name}`')
    data = load_source(run, source)
    graph = build_graph(run, data.schema, model)
    blueprint = _blueprint(run, data, graph.recipe, private_folder(), timeline=timeline)
    blueprint = msgspec.structs.replace(
        blueprint,
        tables=tuple(each.spec() for each in sparse_modules(graph)),
        dense=dense_entries(graph),
    )
    check_groups(blueprint)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (LOGS, ROWS):
        (folder / name).mkdir(exist_ok=True)
    if resume:
        _check_fits(blueprint, folder)
    else:
        _write_first_checkpoint(blueprint, folder, dense_values(graph), start_from)
    (folder / JOURNAL).unlink(missing_ok=True)
    blueprint.write(folder)
    _make_keys(blueprint, folder)
    return blueprint


def _blueprint(run: Run, data: Source, recipe: Recipe, private: Path, *, timeline: bool) -> Blueprint:
    """Fill in what the run file leaves to the model, the data and this machine."""
    samples = run.data.samples or data.num_samples
    if samples is None:
        raise TrainingError("the data have no end", hint="say how many samples an epoch has: data.samples")
    if data.num_samples is not None and samples > data.num_samples:
        raise TrainingError(
            f"data.samples is {samples}, and there are {data.num_samples}", hint="lower it, or leave it out"
        )
    name = run.optimizer.name or recipe.optimizer
    rate = run.optimizer.learning_rate or recipe.learning_rate
    optimizer = make_dense_optimizer(name, learning_rate=rate, **run.optimizer.settings)
    rows = run.optimizer.rows or ROWS_AS[optimizer.name]
    if rows not in ROW_OPTIMIZERS:
        raise TrainingError(
            f"servers have no optimizer `{rows}` for embedding rows", hint=did_you_mean(rows, ROW_OPTIMIZERS)
        )
    row_optimizer = make_row_optimizer(
        rows, learning_rate=run.optimizer.rows_learning_rate or rate, **run.optimizer.rows_settings
    )
    make_schedule(run.optimizer.schedule.name, **run.optimizer.schedule.settings())
    address = run.network.address
    return Blueprint(
        run=_with_defaults(run, name=name, rate=rate, batch=run.training.batch or recipe.batch),
        tables=(),
        dense=(),
        samples=samples,
        batch=(run.training.batch or recipe.batch) * run.training.accumulate,
        optimizer=described(optimizer),
        row_optimizer=row_described(row_optimizer),
        metric=recipe.metric,
        coordinator=_server_spec(COORDINATOR, address, private),
        servers=tuple(_server_spec(f"server-{number}", address, private) for number in range(run.servers.count)),
        timeline=timeline,
        fingerprint=fingerprint_of(run, data, samples),
        lanes=str(private) if run.network.shared_memory else None,
    )


def _with_defaults(run: Run, *, name: str, rate: float, batch: int) -> Run:
    """Return a run that says what the model chose where the run file did not."""
    return msgspec.structs.replace(
        run,
        training=msgspec.structs.replace(run.training, batch=batch),
        optimizer=msgspec.structs.replace(run.optimizer, name=name, learning_rate=rate),
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


def private_folder() -> Path:
    """Return a new folder of this user's alone, in memory where there is such a place."""
    memory = Path("/dev/shm")  # noqa: S108 - the folder inside is made for this run, mode 0700
    parent = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    _sweep(parent)
    return Path(tempfile.mkdtemp(prefix=f"{PRIVATE_PREFIX}{os.getpid()}-", dir=parent))


def _sweep(parent: Path) -> None:
    """Remove folders of launchers that are gone."""
    for path in parent.glob(f"{PRIVATE_PREFIX}*-*"):
        owner = path.name.removeprefix(PRIVATE_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _write_first_checkpoint(blueprint: Blueprint, folder: Path, values: Any, start_from: Start | None) -> None:
    """Write the state before the first step: dense parameters as the model has them and no rows, or those given."""
    partial = checkpoints.begin(folder, 0)
    num_servers = 0
    if start_from is not None:
        values, num_servers = fill_first(known_from(start_from), blueprint, partial, values)
    checkpoints.save_dense(partial, 0, 0, values, {})
    files = checkpoints.checksums_in(partial, only="**/*")
    manifest = Manifest(
        step=0, position=0, dense_steps=0, num_servers=num_servers, samples=blueprint.samples, files=files
    )
    checkpoints.publish(partial, manifest)


def _check_fits(blueprint: Blueprint, folder: Path) -> None:
    """Refuse to go on with another model, or other data."""
    if not (folder / BLUEPRINT).is_file():
        raise TrainingError(f"{folder} is no run", hint="give the folder that `dovetail train` wrote")
    before = Blueprint.read(folder)
    for what in ("tables", "dense", "row_optimizer", "optimizer"):
        old, new = getattr(before, what), getattr(blueprint, what)
        if what in ("row_optimizer", "optimizer"):
            old, new = old["name"], new["name"]
        if old != new:
            raise TrainingError(
                f"{folder} was trained with other {what.replace('_', ' ')} than this run has",
                hint="resume with the model and optimizers that it began with",
            )
    newest = checkpoints.newest(folder)
    manifest = Manifest.read(newest)
    if before.samples != blueprint.samples:
        if manifest.position % before.samples:
            raise TrainingError(
                f"{folder} was trained on {before.samples} samples an epoch, this run has {blueprint.samples}, and it "
                f"stands within an epoch, at sample {manifest.position % before.samples}",
                hint="resume with the data it began with to the end of the epoch; other data can follow then",
            )
        manifest = _with_samples(newest, manifest, blueprint.samples)
    done, epochs = manifest.position // blueprint.samples, blueprint.run.training.epochs
    if manifest.position > blueprint.samples * epochs:
        raise TrainingError(
            f"{folder} is done with {done} epoch{'' if done == 1 else 's'}, and epochs is {epochs}",
            hint=f"train longer: dovetail train --resume {folder} --epochs {done + 1}",
        )


def _with_samples(folder: Path, manifest: Manifest, samples: int) -> Manifest:
    """Have a checkpoint at the end of an epoch stand at the end of as many epochs of so many samples."""
    manifest = msgspec.structs.replace(
        manifest, position=manifest.position // manifest.samples * samples, samples=samples
    )
    partial = folder.with_suffix(f".{checkpoints.PARTIAL.strip('.')}")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(folder, partial)
    checkpoints.publish(partial, manifest)
    return manifest


def _make_keys(blueprint: Blueprint, folder: Path) -> None:
    """Make a pair of keys for every process that there is none for yet."""
    names = [LAUNCHER, COORDINATOR, *(spec.name for spec in blueprint.servers)]
    names += [name for name, _ in blueprint.run.each_worker()]
    for name in names:
        make_keys(folder / KEYS, name)
