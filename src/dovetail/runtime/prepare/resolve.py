"""From a run file to a blueprint: what the run file leaves to the model, the data and this machine."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec

from dovetail.data.source import Source
from dovetail.embedding import ROW_OPTIMIZERS, make_row_optimizer
from dovetail.embedding.row_optimizer import PrivateSGD
from dovetail.embedding.row_optimizer import described as row_described
from dovetail.errors import did_you_mean
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.metrics import make_metric
from dovetail.models.recipe import Recipe
from dovetail.models.schedules import make_schedule
from dovetail.models.whole import WholeModel
from dovetail.runtime.blueprint import Blueprint, ServerSpec, StageWorkers
from dovetail.runtime.dense.optimizer import check_groups, described, make_dense_optimizer
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.masking.masks import check_installed
from dovetail.runtime.masking.rounding import clip_before_rounding
from dovetail.runtime.model.batch_norm import with_norms
from dovetail.runtime.model.build import Model
from dovetail.runtime.model.dry_run import dry_run
from dovetail.runtime.model.parameters import dense_entries, sparse_modules
from dovetail.runtime.model.stages import check_cut
from dovetail.runtime.prepare.main_guard import travelling
from dovetail.runtime.prepare.placement import Elsewhere
from dovetail.runtime.prepare.private import check_model, check_rows, positions_of
from dovetail.runtime.prepare.sites import portion_of
from dovetail.runtime.prepare.source_fingerprint import source_fingerprint
from dovetail.runtime.private_folder import hold_port, make_private_folder, remove_private_folder
from dovetail.spec.run import Run

ROWS_AS = {"sgd": "sgd", "momentum": "sgd", "adagrad": "adagrad", "adam": "adam", "adamw": "adam"}
"""What updates rows unless the run says otherwise: only touched rows, so no momentum and no decay."""
COORDINATOR = "coordinator"
MOST_COPIED_BYTES = 1 << 28


def resolve(
    run: Run, built: Model, data: Source, *, timeline: bool, bare: bool, elsewhere: Elsewhere
) -> tuple[Blueprint, Path]:
    """Return a new run's blueprint, worked out from its model and a look at its data, and its private folder."""
    tables, dense = tuple(each.spec() for each in sparse_modules(built)), dense_entries(built)
    if run.table.place == "device" and (limited := [table.name for table in tables if table.max_norm is not None]):
        raise TrainingError(
            f"layer `{limited[0]}` has max_norm, and its rows would lie on a device",
            hint='set table.place = "servers", which keep the norm of rows',
        )
    if len(run.stages) > 1 and isinstance(built, LayerGraph):
        check_cut(built, run)
    samples, own_loss = _samples(run, data), _own_loss(built, run)
    task = dry_run(built, data, samples=samples, loss=run.model.loss, bare=bare, counts=run.is_one_process)
    run = msgspec.structs.replace(run, model=msgspec.structs.replace(run.model, loss=task.loss))
    run = with_norms(run, built)
    if run.privacy.aggregation == "masked":
        run = _masked(run)
    if run.privacy.is_private:
        check_model(run, built)
    if run.training.tail is None and len(run.stages) > 1:  # a piece would go through all, and each has its price
        run = msgspec.structs.replace(run, training=msgspec.structs.replace(run.training, tail=0.0))
    metrics = task.metrics if run.model.metrics is None else run.model.metrics
    for name in metrics:
        make_metric(name)
    looks = source_fingerprint(run, data, samples)
    private = make_private_folder()
    try:
        blueprint = msgspec.structs.replace(
            _blueprint(run, samples, built.recipe, private, timeline=timeline),
            tables=tables,
            dense=dense,
            metrics=metrics,
            own_loss=own_loss,
            flops=task.flops,
            stages=_stages(run, built, private, elsewhere),
            looks=looks,
        )
        check_groups(blueprint)
        if run.privacy.aggregation == "masked":
            _check_no_step_of_one(blueprint)
            if run.privacy.clip is not None:
                clip_before_rounding(blueprint, run.privacy.clip)
        check_rows(blueprint)
    except BaseException:
        remove_private_folder(private)
        raise
    return blueprint, private


def _check_no_step_of_one(blueprint: Blueprint) -> None:
    """Refuse steps that have one sample: two workers cannot share it."""
    if 1 in (blueprint.batch, blueprint.samples % blueprint.batch):
        raise TrainingError(
            f"sums are masked, and of {blueprint.samples} samples in batches of {blueprint.batch} one is a step by "
            "itself, which is the gradient of one worker",
            hint="set data.samples or training.batch otherwise",
        )


def _masked(run: Run) -> Run:
    """Return a run whose sums are masked: a worker has one part of each step, and nobody takes some of it."""
    check_installed()
    return msgspec.structs.replace(run, training=msgspec.structs.replace(run.training, tail=0.0))


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
    optimizer = make_dense_optimizer(name, learning_rate=rate, **run.optimizer.settings)
    rows = run.optimizer.rows or ROWS_AS[optimizer.name]
    if rows not in ROW_OPTIMIZERS or rows == PrivateSGD.name:
        raise TrainingError(
            f"servers have no optimizer `{rows}` for embedding rows", hint=did_you_mean(rows, ROW_OPTIMIZERS)
        )
    row_optimizer = make_row_optimizer(
        rows, learning_rate=run.optimizer.rows_learning_rate or rate, **run.optimizer.rows_settings
    )
    make_schedule(run.optimizer.schedule.name, **run.optimizer.schedule.settings())
    address, batch = run.network.address, run.training.batch or recipe.batch
    portion = portion_of(run, samples, batch * run.training.accumulate)
    population = samples if run.privacy.is_private else None
    samples = positions_of(samples, batch) if run.privacy.is_private else samples
    return Blueprint(
        run=_with_defaults(run, name=name, rate=rate, batch=batch),
        tables=(),
        dense=(),
        samples=samples if portion is None else portion.own_samples,
        batch=batch * run.training.accumulate if portion is None else portion.own_batch,
        portion=portion,
        population=population,
        optimizer=described(optimizer),
        row_optimizer=row_described(row_optimizer),
        coordinator=_server_spec(COORDINATOR, address, private),
        servers=tuple(_server_spec(f"server-{number}", address, private) for number in range(run.servers.count)),
        timeline=timeline,
        lanes=str(private) if run.network.shared_memory else None,
    )


def _with_defaults(run: Run, *, name: str, rate: float, batch: int) -> Run:
    """Return a run that says what the model chose where the run file did not."""
    return msgspec.structs.replace(
        run,
        training=msgspec.structs.replace(run.training, batch=batch),
        optimizer=msgspec.structs.replace(run.optimizer, name=name, learning_rate=rate),
    )


def _stages(run: Run, built: Model, private: Path, elsewhere: Elsewhere) -> tuple[StageWorkers, ...]:
    """Return the stages with the addresses of their workers; none where there is only one."""
    if len(run.stages) < 2 or not isinstance(built, LayerGraph):
        return ()
    last = run.stages[-1].last_layer
    if last != len(built) - 1:
        raise TrainingError(
            f"the stages hold layers 0 to {last}, and the model has {len(built)}",
            hint="a plan holds for the model that it was made for: profile and plan again",
        )
    dense = {entry.name for entry in dense_entries(built)}
    return tuple(
        StageWorkers(
            workers=tuple(
                _elsewhere_spec(name, elsewhere.addresses[name])
                if name in elsewhere.addresses
                else _server_spec(name, run.network.address, private)
                for name, _ in (run.workers_of(number) if number else ())
            ),
            has_dense=any(name in dense for name, _ in built.parameters_of(stage.first_layer, stage.last_layer)),
        )
        for number, stage in enumerate(run.stages)
    )


def _server_spec(name: str, address: str, private: Path) -> ServerSpec:
    """Return the addresses of a process that others call."""
    try:
        port = hold_port(address, private)
    except OSError as error:
        raise TrainingError(
            f"nothing can listen on {address}: {error}", hint="set network.address to one of this machine's own"
        ) from None
    return ServerSpec(name=name, address=f"tcp://{address}:{port}", local_address=f"ipc://{private}/{name}")


def _elsewhere_spec(name: str, address: str) -> ServerSpec:
    """Return the address of a process on another host, the same for all who call it."""
    return ServerSpec(name=name, address=address, local_address=address)
