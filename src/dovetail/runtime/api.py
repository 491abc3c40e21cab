"""Training from Python: the same as `dovetail train`, with a model and data that may be objects of the program.

    if __name__ == "__main__":
        result = train(MyModule(), MySource(), folder="runs/mine", workers=4, batch=4096, epochs=2)
        print(result.auc)
        model = result.load_model()

Workers are processes that import the program's main script, so what starts a run stands under `__main__`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from dovetail.data.adopt import as_source
from dovetail.data.load import how_made
from dovetail.data.source import Source
from dovetail.data.tables import as_table
from dovetail.errors import DovetailError, SpecError
from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.restore import check_by_name, read_blueprint
from dovetail.runtime.finished.result import Pace, TrainingResult, read_result
from dovetail.runtime.launch.callbacks import Callback, Callbacks
from dovetail.runtime.launch.guard import check_travels, forget, leave_when_imported
from dovetail.runtime.launch.live import Shown, View
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.launch.loggers import Logger, Logging, make_logger
from dovetail.runtime.launch.prepare import prepare
from dovetail.runtime.launch.validation import Validator
from dovetail.runtime.launch.warm_start import Start
from dovetail.runtime.messages import Report
from dovetail.spec.run import Run, RunServers, RunWorker
from dovetail.spec.run_settings import dotted_key, run_from, with_settings

OnReport = Callable[[Report], None]
PLACE = "train()"
"""What errors call the keywords."""


@contextmanager
def hints_in_tracebacks() -> Iterator[None]:
    """Have a traceback end in the hint of the error: a program shows errors as Python does."""
    try:
        yield
    except DovetailError as error:
        error.add_note(f"hint: {error.hint}")
        raise


@hints_in_tracebacks()
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
    optimizer: str | Mapping[str, Any] | None = None,
    schedule: str | Mapping[str, Any] | None = None,
    validation: Any = None,
    validation_options: Mapping[str, Any] | None = None,
    validate_every: int | None = None,
    early_stopping: int | None = None,
    start_from: Start | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | Logger] = (),
    progress: bool | None = None,
    timeline: bool = False,
    on_report: OnReport | None = None,
    stop: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> TrainingResult:
    """Train a model over servers and workers on this machine, and return what came of it.

    `model` is a name, `package.module:function`, or a module of the user's own; `data` a name, a source, a PyTorch data
    set or loader, or a table (see `dovetail.data.as_source`), with `data_options` of its kind. `settings` are keys of
    the run file: batch, epochs, mode, dense, samples, seed, loss, learning_rate, clip_norm, every_steps and so on, or
    whole sections as tables. `run` is a run file to start from.

    The model is tried on `validation`, data of any kind that `data` may be, every `validate_every` steps (absent: at
    the end of each epoch), and the best checkpoint is kept; where it has not got better `early_stopping` times in a
    row, the run stops. `start_from` is a run, a checkpoint, a file of parameters or a `state_dict` to begin with.

    `progress` shows how the run goes (absent: on a terminal). `callbacks` and `loggers` ("tensorboard", "wandb",
    "mlflow", or objects) are told of it, and `on_report` is called a few times a second. Once `stop` returns True the
    run keeps its state and ends.
    """
    leave_when_imported()
    own_model = model if isinstance(model, nn.Module) else None
    name, own_source, named_options = _adopted(data, data_options or {}, own_model)
    given = _settings(settings, optimizer=optimizer, schedule=schedule, workers=workers, servers=servers)
    if model is not None:
        given["model.name"] = model if isinstance(model, str) else name_of(model)
    if name is not None:
        given["data.name"] = name
    given |= _validation_settings(validation, validation_options, validate_every, early_stopping)
    tried_on = None
    if validation is not None and not isinstance(validation, str):
        tried_on = _as_source(validation, validation_options or data_options or {}, own_model)
    given |= {f"model.options.{key}": value for key, value in (model_options or {}).items()}
    given |= {f"data.options.{key}": value for key, value in named_options.items()}
    whole = with_settings(run, given, place=PLACE) if run is not None else run_from({}, given, place=PLACE)
    return start(
        whole,
        Path(folder),
        model=own_model,
        source=own_source,
        validation=tried_on,
        start_from=start_from,
        callbacks=_told(callbacks, loggers, whole, progress=progress),
        timeline=timeline,
        on_report=on_report,
        stop=stop,
    )


@hints_in_tracebacks()
def resume(
    folder: str | Path,
    *,
    model: nn.Module | None = None,
    data: Any = None,
    data_options: Mapping[str, Any] | None = None,
    workers: int | Sequence[RunWorker] | None = None,
    servers: int | RunServers | None = None,
    validation: Any = None,
    validation_options: Mapping[str, Any] | None = None,
    validate_every: int | None = None,
    early_stopping: int | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | Logger] = (),
    progress: bool | None = None,
    timeline: bool = False,
    on_report: OnReport | None = None,
    stop: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> TrainingResult:
    """Go on with a run from its newest checkpoint, on as many workers and servers as there are now.

    `model`, `data` and `validation` are those that the run began with, where they were objects; at the end of an epoch
    there may be more data. The rest is as in `train`.
    """
    leave_when_imported()
    given = _settings(settings, workers=workers, servers=servers)
    name, source, options = _adopted(data, data_options or {}, model)
    given |= {"data.name": name, "data.options": options} if name is not None else {}
    given |= _validation_settings(validation, validation_options, validate_every, early_stopping)
    tried_on = None
    if validation is not None and not isinstance(validation, str):
        tried_on = _as_source(validation, validation_options or data_options or {}, model)
    whole = with_settings(read_blueprint(Path(folder)).run, given, place="resume()")
    return start(
        whole,
        Path(folder),
        model=model,
        source=source,
        validation=tried_on,
        callbacks=_told(callbacks, loggers, whole, progress=progress),
        resumed=True,
        timeline=timeline,
        on_report=on_report,
        stop=stop,
    )


def start(
    run: Run,
    folder: Path,
    *,
    model: nn.Module | None = None,
    source: Source | None = None,
    validation: Source | None = None,
    start_from: Start | None = None,
    callbacks: Sequence[Callback] = (),
    resumed: bool = False,
    timeline: bool = False,
    on_report: OnReport | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> TrainingResult:
    """Run a run file to its end."""
    for thing, what in ((model, "model"), (source, "data")):
        if thing is not None:
            check_travels(thing, what)
    if source is not None and not isinstance(source, Source):
        raise TrainingError(
            f"a {type(source).__name__} is no source of samples",
            hint="give an object with `schema`, `num_samples` and `read(first, last)`; see dovetail.data.Source",
        )
    check_by_name(run, model=model, source=source)
    told = Callbacks(callbacks)
    blueprint = prepare(
        run, folder, model=model, source=source, resume=resumed, timeline=timeline, start_from=start_from
    )
    forget()
    pace = Pace()
    try:
        validator = None
        if run.validation.is_wanted or validation is not None:
            validator = Validator(
                folder, blueprint, model=model, source=source, data=validation, on_validated=told.validated
            )
        told.begin(folder, run)

        def handle(report: Report) -> None:
            pace.add(report)
            told.report(report)
            if on_report is not None:
                on_report(report)
            if validator is not None:
                validator.look(report.checkpoint_step)

        def should_stop() -> bool:
            return stop() or told.asked_to_stop() or (validator is not None and validator.should_stop())

        try:
            with LocalRun(folder, model=model, source=source) as processes:
                processes.wait(handle, stop=should_stop)
            if validator is not None:
                validator.finish()
        finally:
            if validator is not None:
                validator.close()
        result = read_result(folder, pace, blueprint.samples * run.training.epochs, model=model, source=source)
        told.end(result)
    finally:
        told.close()
    return result


def _validation_settings(
    data: Any, options: Mapping[str, Any] | None, every: int | None, patience: int | None
) -> dict[str, Any]:
    """Return the keywords about validation as keys of a run file."""
    given: dict[str, Any] = {"validation.every_steps": every, "validation.patience": patience}
    if isinstance(data, str):
        given |= {"validation.name": data, "validation.options": _plain(options or {})}
    elif data is None and options:
        given["validation.options"] = _plain(options)
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


def _adopted(
    data: Any, options: Mapping[str, Any], model: nn.Module | None
) -> tuple[str | None, Source | None, dict[str, Any]]:
    """Return what the run's files call some data, the source where it is an object, and the options of a name."""
    if data is None or isinstance(data, str):
        return data, None, dict(options)
    made = how_made(data)
    if made is not None and not options:
        with suppress(TypeError):
            return made[0], None, _plain(made[1])
    with suppress(TypeError):
        return name_of(data), _as_source(data, options, model), _plain(options)
    return name_of(data), _as_source(data, options, model), {}


def _as_source(data: Any, options: Mapping[str, Any], model: nn.Module | None) -> Source:
    """Return some data as a source; inputs without names have those that the model gives them."""
    if isinstance(data, Source):
        return data
    inputs = inputs_of(model) if "names" not in options and as_table(data) is None else None
    return as_source(data, **options, **({"names": inputs} if inputs else {}))


def inputs_of(model: nn.Module | None) -> list[str] | None:
    """Return what a module calls its inputs; None where they have no names of their own."""
    if model is None or isinstance(model, nn.Sequential | LayerGraph):
        return None
    return list(inspect.signature(model.forward).parameters) or None


def name_of(thing: object) -> str:
    """Return what the run's files call an object of the user's own."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _settings(
    settings: Mapping[str, Any],
    *,
    workers: int | Sequence[RunWorker] | None = None,
    servers: int | RunServers | None = None,
    optimizer: str | Mapping[str, Any] | None = None,
    schedule: str | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return keywords as dotted keys of a run file."""
    given: dict[str, Any] = {}
    for key, words in (("optimizer", optimizer), ("optimizer.schedule", schedule)):
        if words is not None:
            given |= {f"{key}.name": words} if isinstance(words, str) else {key: _plain(words)}
    if workers is not None:
        given["worker"] = [{"count": workers}] if isinstance(workers, int) else _plain(list(workers))
    if servers is not None:
        given |= {"servers.count": servers} if isinstance(servers, int) else {"servers": _plain(servers)}
    for name, value in settings.items():
        if name == "loss":
            given["model.loss"] = value
        elif name in ("model", "data", "worker", "servers"):
            raise SpecError("is not a setting of a run", key=name, hint=f"give `{name}s` or `{name}_options`")
        else:
            given[dotted_key(name)] = _plain(value)
    return given


def _plain(value: Any) -> Any:
    """Return a value as a file would hold it."""
    return msgspec.json.decode(msgspec.json.encode(value))
