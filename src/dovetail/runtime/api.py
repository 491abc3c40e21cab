"""Training from Python: the same as `dovetail train`, with a model and data that may be objects of the program.

    if __name__ == "__main__":
        result = train(MyModule(), MySource(), folder="runs/mine", workers=4, batch=4096, epochs=2)
        print(result.auc)
        model = result.load_model()

Workers are processes that import the program's main script, so what starts a run stands under `__main__`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dovetail.data.adopt import as_paths, as_source, as_table, table_options
from dovetail.data.files.columns import Columns
from dovetail.data.load import how_made, named_data, settled_options
from dovetail.data.source import Source
from dovetail.errors import SpecError
from dovetail.logs import tell
from dovetail.models.load import as_whole
from dovetail.models.torch_optimizers import optimizer_settings, schedule_settings
from dovetail.models.whole import inputs_of
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.result import TrainingResult
from dovetail.runtime.launch.hosts.fleet import fleet_of
from dovetail.runtime.launch.start import OnReport, start
from dovetail.runtime.launch.stopping import Stopping
from dovetail.runtime.model.kept_model import kept_model
from dovetail.runtime.monitor.callbacks import Callback
from dovetail.runtime.monitor.live import Shown, View
from dovetail.runtime.monitor.loggers import Logger, Logging, make_logger
from dovetail.runtime.planned.from_plan import with_plan_of
from dovetail.runtime.prepare.main_guard import leave_when_imported
from dovetail.runtime.prepare.run_folder import with_other_data
from dovetail.runtime.prepare.warm_start import FirstValues
from dovetail.runtime.trust import check_trusted
from dovetail.spec.run import Run, RunData, RunServers, RunWorker, dotted_key, run_from, with_settings


def adopted(
    data: Any, options: Mapping[str, Any], model: nn.Module | None
) -> tuple[str | None, Source | None, dict[str, Any]]:
    """Return what the run's files call some data, the source where it is an object, and the options of a name."""
    if not isinstance(data, str) and (paths := as_paths(data)):
        data, options = named_data(
            RunData().name, {"path": paths if isinstance(data, Sequence) else paths[0], **options}
        )
    if data is None or isinstance(data, str):
        return data, None, dict(options)
    made = how_made(data)
    if made is not None and not options:
        with suppress(TypeError):
            return made[0], None, plain(made[1])
    source = source_of(data, options, model)
    columns = getattr(source, "columns", None)
    if isinstance(columns, Columns):
        options = settled_options(options, columns)
    with suppress(TypeError):
        return name_of(data), source, plain(options)
    return name_of(data), source, {}


def source_of(data: Any, options: Mapping[str, Any], model: nn.Module | None) -> Source:
    """Return some data as a source; inputs without names have those that the model gives them."""
    if isinstance(data, Source):
        return data
    inputs = inputs_of(model) if "names" not in options and as_table(data) is None else None
    return as_source(data, **options, **({"names": inputs} if inputs else {}))


def name_of(thing: object) -> str:
    """Return what the run's files call an object of the user's own."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def plain(value: Any) -> Any:
    """Return a value as a file would hold it."""
    return msgspec.json.decode(msgspec.json.encode(value))


PLACE = "train()"
"""What errors call the keywords."""


def train(
    model: str | nn.Module | None = None,
    data: Any = None,
    *,
    folder: str | Path,
    workers: int | Sequence[RunWorker] | None = None,
    servers: int | RunServers | None = None,
    run: Run | None = None,
    model_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    optimizer: str | Mapping[str, Any] | Optimizer | Sequence[Optimizer] | None = None,
    schedule: str | Mapping[str, Any] | LRScheduler | None = None,
    loss: str | Mapping[str, Any] | Callable[..., Any] | None = None,
    validation: Any = None,
    validation_options: Mapping[str, Any] | None = None,
    validation_metric: str | None = None,
    validate_every: int | None = None,
    early_stopping: int | None = None,
    start_from: FirstValues | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | Logger] = (),
    progress: bool | None = None,
    timeline: bool = False,
    on: str | Path | None = None,
    on_report: OnReport | None = None,
    stop: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> TrainingResult:
    """Train a model over servers and workers on this machine, and return what came of it.

    With `on`, what `dovetail train --on` takes, the workers are on those machines.

    `model` is a name, `package.module:function`, or a module of the user's own; `data` a name, a source, a PyTorch data
    set or loader, or a table (see `dovetail.data.as_source`), with `data_options` of its kind. `loss` is a name,
    or a function or module of one's own that gives one value a sample, or one of them for each part of the model's
    answer; absent, labels and answers tell. `settings` are keys of the run file: batch, epochs, mode, dense, samples,
    seed, metric, learning_rate, clip_norm, every_steps and so on, or whole sections as tables; PyTorch's `lr`,
    `batch_size` and `device` are understood. `optimizer` may be one of PyTorch's (or one for dense parameters and one
    for rows), and `schedule` a scheduler that would be stepped after every batch. `run` is a run file to start from.

    The model is tried on `validation`, data of any kind that `data` may be, every `validate_every` steps (absent: at
    the end of each epoch), and the best checkpoint by `validation_metric` (absent: the loss) is kept; where it has not
    got better `early_stopping` times in a row, the run stops. `start_from` is a run, a checkpoint, a file of parameters
    or a `state_dict` to begin with.

    `progress` shows how the run goes (absent: on a terminal). `callbacks` and `loggers` ("tensorboard", "wandb",
    "mlflow", or objects) are told of it, and `on_report` is called a few times a second. Once `stop` returns True, or
    with Ctrl-C (in a notebook: the interrupt), the run keeps its state and ends, `result.interrupted`; a second Ctrl-C
    ends it at once.
    """
    leave_when_imported()
    own_model = model if isinstance(model, nn.Module) else None
    name, own_source, named_options = adopted(data, data_options or {}, own_model)
    if optimizer is None or isinstance(optimizer, str | Mapping):
        words = optimizer
    else:
        words = optimizer_settings(optimizer, own_model)
    given = _settings(settings, optimizer=words, schedule=schedule, workers=workers, servers=servers)
    if loss is None or (named := _named(loss)) is not None:
        given |= {} if loss is None else {"model.loss": named}
    elif own_model is not None:
        own_model = as_whole(own_model, loss=loss)
    else:
        raise TrainingError(
            "a loss that is an object needs a model that is one", hint="name the loss: package.module:function"
        )
    if model is not None:
        given["model.name"] = model if isinstance(model, str) else name_of(model)
    if name is not None and run is not None and name != run.data.name:
        run = with_other_data(run, name) if own_source is None else run
    if name is not None and (run is None or own_source is not None):
        given["data.name"] = name
    given |= _validation_settings(validation, validation_options, validation_metric, validate_every, early_stopping)
    tried_on = None
    if validation is not None and not isinstance(validation, str):
        tried_on = source_of(validation, validation_options or data_options or {}, own_model)
    given |= {f"model.options.{key}": value for key, value in (model_options or {}).items()}
    given |= {f"data.options.{key}": value for key, value in named_options.items()}
    whole = with_settings(run, given, place=PLACE) if run is not None else run_from({}, given, place=PLACE)
    _check_one_process(whole, workers, servers)
    with ExitStack() as things:
        stopping = things.enter_context(Stopping(tell, signals=(signal.SIGINT,)))
        fleet = None if on is None else things.enter_context(fleet_of(str(on)))
        machine = None if fleet is None else fleet.machine
        whole = with_plan_of(whole, Path(), dense=given.get("training.dense"), machine=machine, tell=tell)
        result = start(
            whole,
            Path(folder),
            model=own_model,
            source=own_source,
            validation=tried_on,
            start_from=start_from,
            callbacks=_told(callbacks, loggers, whole, progress=progress),
            timeline=timeline,
            on_report=on_report,
            stop=lambda: stopping.asked() or stop(),
            fleet=fleet,
        )
        return _ended(result, stopping)


def resume(
    folder: str | Path,
    *,
    model: nn.Module | None = None,
    data: Any = None,
    data_options: Mapping[str, Any] | None = None,
    loss: Mapping[str, Any] | Callable[..., Any] | None = None,
    workers: int | Sequence[RunWorker] | None = None,
    servers: int | RunServers | None = None,
    validation: Any = None,
    validation_options: Mapping[str, Any] | None = None,
    validation_metric: str | None = None,
    validate_every: int | None = None,
    early_stopping: int | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | Logger] = (),
    progress: bool | None = None,
    timeline: bool = False,
    trust: bool = False,
    on: str | Path | None = None,
    on_report: OnReport | None = None,
    stop: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> TrainingResult:
    """Go on with a run from its newest checkpoint, on as many workers and servers as there are now.

    `data` and `validation` are those that the run began with, where they were objects; at the end of an epoch there may
    be more data. So are `model` and `loss`, which may be left out where the run's folder has kept them. The rest is as
    in `train`. Code that the folder names is only run where nobody else can write the folder, or with `trust`.
    """
    leave_when_imported()
    given = _settings(settings, workers=workers, servers=servers)
    before = Blueprint.read(Path(folder)).run
    check_trusted(Path(folder), before, trust=trust, own_model=model is not None, own_data=data is not None)
    if data_options is None and as_table(data) is not None:  # the columns are what they were
        data_options = table_options(before.data.options)
    model = model if model is not None else kept_model(Path(folder), before, trust=trust)
    name, source, options = adopted(data, data_options or {}, model)
    given |= {"data.name": name, "data.options": options} if name is not None else {}
    given |= _validation_settings(validation, validation_options, validation_metric, validate_every, early_stopping)
    tried_on = None
    if validation is not None and not isinstance(validation, str):
        tried_on = source_of(validation, validation_options or data_options or {}, model)
    whole = with_settings(before, given, place="resume()")
    _check_one_process(whole, workers, servers)
    with ExitStack() as things:
        stopping = things.enter_context(Stopping(tell, signals=(signal.SIGINT,)))
        fleet = None if on is None else things.enter_context(fleet_of(str(on)))
        result = start(
            whole,
            Path(folder),
            model=model if model is None or loss is None else as_whole(model, loss=loss),
            source=source,
            validation=tried_on,
            callbacks=_told(callbacks, loggers, whole, progress=progress),
            resumed=True,
            timeline=timeline,
            on_report=on_report,
            stop=lambda: stopping.asked() or stop(),
            fleet=fleet,
        )
        return _ended(result, stopping)


def _are_several(workers: int | Sequence[RunWorker] | None, servers: int | RunServers | None) -> bool:
    """Say whether more than one process was asked for."""
    return servers is not None or (workers if isinstance(workers, int) else sum(w.count for w in workers or ())) > 1


def _check_one_process(run: Run, workers: int | Sequence[RunWorker] | None, servers: int | RunServers | None) -> None:
    """Refuse several processes where the run's rows lie with one."""
    if run.is_one_process and _are_several(workers, servers):
        raise SpecError(
            f'is "{run.table.place}", which is one process, and there are workers or servers',
            key="table.place",
            hint='leave one of them out: rows of several workers lie on servers, or with place = "sharded" on them',
        )


def _ended(result: TrainingResult, stopping: Stopping) -> TrainingResult:
    """Return a result that says whether Ctrl-C ended the run."""
    return replace(result, interrupted=True) if stopping.is_asked and not result.is_complete else result


def _named(loss: Any) -> str | dict[str, str] | None:
    """Return a loss, or those of all parts of an answer, by their names, as a run file holds them; None for objects."""
    if isinstance(loss, Mapping) and all(isinstance(each, str) for each in loss.values()):
        return dict(loss)
    return loss if isinstance(loss, str) else None


def _validation_settings(
    data: Any, options: Mapping[str, Any] | None, metric: str | None, every: int | None, patience: int | None
) -> dict[str, Any]:
    """Return the keywords about validation as keys of a run file."""
    given: dict[str, Any] = {
        "validation.metric": metric,
        "validation.every_steps": every,
        "validation.patience": patience,
    }
    if isinstance(data, str):
        given |= {"validation.name": data, "validation.options": plain(options or {})}
    elif data is None and options:
        given["validation.options"] = plain(options)
    elif data is not None and every is None:
        given["validation.every_epochs"] = 1
    return {key: value for key, value in given.items() if value is not None}


def _told(
    callbacks: Sequence[Callback], loggers: Sequence[str | Logger], run: Run, *, progress: bool | None
) -> list[Callback]:
    """Return everyone who is told of a run."""
    made = [make_logger(each) if isinstance(each, str) else each for each in loggers]
    found = [*callbacks, *(Logging(each) for each in made)]
    if sys.stderr.isatty() if progress is None else progress:
        found.append(Shown(View(f"{run.model.name} · {run.training.mode}", run.training.epochs)))
    return found


SAME_AS = {"lr": "learning_rate", "batch_size": "batch"}
"""What PyTorch's programs call settings of a run."""
ANSWERS = {
    "num_workers": "`workers` is how many processes train; samples are read ahead without being asked "
    "(`look_ahead`), and a DataLoader's own num_workers is not needed",
    "max_epochs": "it is called `epochs`",
    "num_epochs": "it is called `epochs`",
    "shuffle_buffer": "order is drawn over the whole data: `shuffle=True`, with `block_samples` at once",
    "pin_memory": "batches for a GPU are pinned without being asked",
    "momentum": 'it is a setting of the optimizer: optimizer={"name": "momentum", "settings": {"momentum": 0.9}}',
    "weight_decay": 'it is a setting of the optimizer: optimizer={"name": "adamw", "settings": {"weight_decay": 0.01}}',
    "betas": 'they are settings of the optimizer: optimizer={"name": "adam", "settings": {"beta1": 0.9, "beta2": 0.9}}',
}
"""What they say that is none, and what to say instead."""
OF_THE_DATA = (
    "label",
    "weight",
    "slots",
    "fields",
    "multi_valued",
    "ignore",
    "transforms",
    "hash_into",
    "shapes",
    "separator",
)
"""Options that say how data are read, which stand together."""


def in_our_words(settings: Mapping[str, Any], *, has_workers: bool = False) -> dict[str, Any]:
    """Return keywords with those of PyTorch's in the run file's words; those that mean nothing here are answered."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if name in ANSWERS:
            raise SpecError("is not a setting of a run", key=name, hint=ANSWERS[name])
        if name in OF_THE_DATA:
            hint = f'it is an option of the data: data_options={{"{name}": {value!r}}}'
            raise SpecError("is not a setting of a run", key=name, hint=hint)
        if name == "device" and has_workers:
            raise SpecError(
                "is that of one process, and there are workers",
                key="device",
                hint=f'say it of the workers: workers=[RunWorker(count=2, device="{value}")] (dovetail.spec.run)',
            )
        word = SAME_AS.get(name, name)
        if word in found or (word != name and word in settings):
            raise SpecError(f"means `{word}`, which is given too", key=name, hint="give one of them")
        found[word] = {"device": str(value)} if name == "device" else value
    if "device" in found:
        found["table"] = {**plain(found.get("table", {})), **found.pop("device")}
    return found


def _settings(
    settings: Mapping[str, Any],
    *,
    workers: int | Sequence[RunWorker] | None = None,
    servers: int | RunServers | None = None,
    optimizer: str | Mapping[str, Any] | None = None,
    schedule: str | Mapping[str, Any] | LRScheduler | None = None,
) -> dict[str, Any]:
    """Return keywords as dotted keys of a run file."""
    given: dict[str, Any] = {}
    settings = in_our_words(settings, has_workers=workers is not None)
    if "scheduler" in settings:
        schedule = settings.pop("scheduler")
    if isinstance(schedule, LRScheduler):
        schedule = schedule_settings(schedule)
    for key, words in (("optimizer", optimizer), ("optimizer.schedule", schedule)):
        if words is not None:
            given |= {f"{key}.name": words} if isinstance(words, str) else {key: plain(words)}
    if workers is not None:
        given["worker"] = [{"count": workers}] if isinstance(workers, int) else plain(list(workers))
    if servers is not None:
        given |= {"servers.count": servers} if isinstance(servers, int) else {"servers": plain(servers)}
    for name, value in settings.items():
        if name == "metric":
            given["model.metric"] = plain(value)
        elif name in ("model", "data", "worker", "servers"):
            raise SpecError("is not a setting of a run", key=name, hint=f"give `{name}s` or `{name}_options`")
        else:
            given[dotted_key(name)] = plain(value)
    return given
