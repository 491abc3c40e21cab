"""Training from Python: the same as `dovetail train`, with a model and data that may be objects of the program.

    if __name__ == "__main__":
        result = train(MyModule(), MySource(), folder="runs/mine", workers=4, batch=4096, epochs=2)
        print(result.auc)
        model = result.load_model()

Workers are processes that import the program's main script, so what starts a run stands under `__main__`.
"""

from __future__ import annotations

import inspect
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
from dovetail.runtime.launch.guard import check_travels, forget, leave_when_imported
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.launch.prepare import prepare
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
    timeline: bool = False,
    on_report: OnReport | None = None,
    stop: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> TrainingResult:
    """Train a model over servers and workers on this machine, and return what came of it.

    `model` is a name, `package.module:function`, or a module of the user's own; `data` a name, a source, a PyTorch data
    set or loader, or a table (see `dovetail.data.as_source`), with `data_options` of its kind. `settings` are keys of
    the run file: batch, epochs, mode, dense, samples, seed, loss, learning_rate, clip_norm, every_steps and so on, or
    whole sections as tables. `run` is a run file to start from. `on_report` is called a few times a second; once `stop`
    returns True the run keeps its state and ends.
    """
    leave_when_imported()
    own_model = model if isinstance(model, nn.Module) else None
    name, own_source, data_options = _adopted(data, data_options or {}, own_model)
    given = _settings(settings, optimizer=optimizer, schedule=schedule, workers=workers, servers=servers)
    if model is not None:
        given["model.name"] = model if isinstance(model, str) else name_of(model)
    if name is not None:
        given["data.name"] = name
    given |= {f"model.options.{key}": value for key, value in (model_options or {}).items()}
    given |= {f"data.options.{key}": value for key, value in data_options.items()}
    whole = with_settings(run, given, place=PLACE) if run is not None else run_from({}, given, place=PLACE)
    return start(
        whole, Path(folder), model=own_model, source=own_source, timeline=timeline, on_report=on_report, stop=stop
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
    timeline: bool = False,
    on_report: OnReport | None = None,
    stop: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> TrainingResult:
    """Go on with a run from its newest checkpoint, on as many workers and servers as there are now.

    `model` and `data` are those that the run began with, where they were objects. `settings` are as in `train`.
    """
    leave_when_imported()
    given = _settings(settings, workers=workers, servers=servers)
    name, source, options = _adopted(data, data_options or {}, model)
    given |= {"data.name": name, "data.options": options} if name is not None else {}
    whole = with_settings(read_blueprint(Path(folder)).run, given, place="resume()")
    return start(
        whole,
        Path(folder),
        model=model,
        source=source,
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
    blueprint = prepare(run, folder, model=model, source=source, resume=resumed, timeline=timeline)
    forget()
    pace = Pace()

    def handle(report: Report) -> None:
        pace.add(report)
        if on_report is not None:
            on_report(report)

    with LocalRun(folder, model=model, source=source) as processes:
        processes.wait(handle, stop=stop)
    total = blueprint.samples * run.training.epochs
    return read_result(folder, pace, total, model=model, source=source)


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
    if not isinstance(data, Source) and "names" not in options and as_table(data) is None:
        options = {**options, "names": inputs_of(model)} if inputs_of(model) else options
    return name_of(data), as_source(data, **options), {}


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
