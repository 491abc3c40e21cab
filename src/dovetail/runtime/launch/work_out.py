"""From a run file to a blueprint: what the run file leaves to the model, the data and this machine."""

from __future__ import annotations

import pickle
import socket
from pathlib import Path

import msgspec

from dovetail.data.source import Source
from dovetail.embedding import ROW_OPTIMIZERS, make_row_optimizer
from dovetail.embedding.row_optimizer import described as row_described
from dovetail.errors import did_you_mean
from dovetail.models.metrics import make_metric
from dovetail.models.recipe import Recipe
from dovetail.models.schedules import make_schedule
from dovetail.models.whole import WholeModel
from dovetail.runtime.blueprint import Blueprint, ServerSpec
from dovetail.runtime.dense.optimizer import described, make_dense_optimizer
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.launch.guard import travelling
from dovetail.runtime.model.build import Model
from dovetail.runtime.model.first_look import first_look
from dovetail.runtime.model.parameters import dense_entries, norms_of, sparse_modules
from dovetail.runtime.private_folder import make_private_folder, remove_private_folder
from dovetail.runtime.sealed import checksum_of_bytes
from dovetail.spec.run import Run

ROWS_AS = {"sgd": "sgd", "momentum": "sgd", "adagrad": "adagrad", "adam": "adam", "adamw": "adam"}
"""What updates rows unless the run says otherwise: only touched rows, so no momentum and no decay."""
COORDINATOR = "coordinator"
MOST_COPIED_BYTES = 1 << 28
FIRST_SAMPLES = 16
"""How many samples are read to know the data again."""


def work_out(run: Run, built: Model, data: Source, *, timeline: bool, bare: bool) -> tuple[Blueprint, Path]:
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


def copied(data: Source) -> Source:
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
