"""Training from Python: the same as `dovetail train`, with a model and data that may be objects of the program.

    if __name__ == "__main__":
        result = train(MyModule(), MySource(), folder="runs/mine", workers=4, batch=4096, epochs=2)
        print(result.auc)
        model = result.load_model()

Workers are processes that import the program's main script, so what starts a run stands under `__main__`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from dovetail.data.source import Source
from dovetail.errors import DovetailError, SpecError
from dovetail.models.load import as_whole
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.restore import check_by_name
from dovetail.runtime.finished.result import Pace, TrainingResult, read_result
from dovetail.runtime.launch.guard import check_travels, forget, leave_when_imported
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.launch.lock import RunLock
from dovetail.runtime.launch.prepare import prepare, undo
from dovetail.runtime.messages import Report
from dovetail.runtime.trust import check_trusted
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
    data: str | Source | None = None,
    *,
    folder: str | Path,
    workers: int | Sequence[RunWorker] | None = None,
    servers: int | RunServers | None = None,
    run: Run | None = None,
    model_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    optimizer: str | Mapping[str, Any] | None = None,
    schedule: str | Mapping[str, Any] | None = None,
    loss: str | Mapping[str, str] | Callable[..., Any] | None = None,
    timeline: bool = False,
    on_report: OnReport | None = None,
    stop: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> TrainingResult:
    """Train a model over servers and workers on this machine, and return what came of it.

    `model` is a name, `package.module:function`, or a module of the user's own; `data` a name or a source of the user's
    own. `loss` is a name, one for each part of the model's answer, or a function or module of one's own that gives one
    value a sample; absent, labels and answers tell. `settings` are keys of the run file: batch, epochs, mode, dense,
    samples, seed, metric, learning_rate, clip_norm, every_steps and so on, or whole sections as tables. `run` is a run
    file to start from. `on_report` is called a few times a second; once `stop` returns True the run keeps
    its state and ends.
    """
    leave_when_imported()
    own_model = model if isinstance(model, nn.Module) else None
    own_source = None if data is None or isinstance(data, str) else data
    given = _settings(settings, optimizer=optimizer, schedule=schedule, workers=workers, servers=servers)
    if loss is None or isinstance(loss, str | Mapping):
        given |= {} if loss is None else {"model.loss": loss if isinstance(loss, str) else dict(loss)}
    elif own_model is not None:
        own_model = as_whole(own_model, loss=loss)
    else:
        raise TrainingError(
            "a loss that is an object needs a model that is one", hint="name the loss: package.module:function"
        )
    if model is not None:
        given["model.name"] = model if isinstance(model, str) else name_of(model)
    if data is not None:
        given["data.name"] = data if isinstance(data, str) else name_of(data)
    given |= {f"model.options.{key}": value for key, value in (model_options or {}).items()}
    given |= {f"data.options.{key}": value for key, value in (data_options or {}).items()}
    whole = with_settings(run, given, place=PLACE) if run is not None else run_from({}, given, place=PLACE)
    return start(
        whole, Path(folder), model=own_model, source=own_source, timeline=timeline, on_report=on_report, stop=stop
    )


@hints_in_tracebacks()
def resume(
    folder: str | Path,
    *,
    model: nn.Module | None = None,
    data: Source | None = None,
    loss: Callable[..., Any] | None = None,
    workers: int | Sequence[RunWorker] | None = None,
    servers: int | RunServers | None = None,
    timeline: bool = False,
    trust: bool = False,
    on_report: OnReport | None = None,
    stop: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> TrainingResult:
    """Go on with a run from its newest checkpoint, on as many workers and servers as there are now.

    `model`, `data` and `loss` are those that the run began with, where they were objects. `settings` are as in `train`.
    Code that the folder names is only run where nobody else can write the folder, or with `trust`.
    """
    leave_when_imported()
    given = _settings(settings, workers=workers, servers=servers)
    before = Blueprint.read(Path(folder)).run
    check_trusted(Path(folder), before, trust=trust, own_model=model is not None, own_data=data is not None)
    whole = with_settings(before, given, place="resume()")
    return start(
        whole,
        Path(folder),
        model=model if model is None or loss is None else as_whole(model, loss=loss),
        source=data,
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
    lock: RunLock | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> TrainingResult:
    """Run a run file to its end.

    `lock` is the folder's, where it is held already; `tell` hears what differs from before.
    """
    for thing, what in ((model, "model"), (source, "data")):
        if thing is not None:
            check_travels(thing, what)
    if source is not None and not isinstance(source, Source):
        raise TrainingError(
            f"a {type(source).__name__} is no source of samples",
            hint="give an object with `schema`, `num_samples` and `read(first, last)`; see dovetail.data.Source",
        )
    check_by_name(run, model=model, source=source)
    forget()
    pace = Pace()

    def handle(report: Report) -> None:
        pace.add(report)
        if on_report is not None:
            on_report(report)

    if resumed and not folder.is_dir():
        raise TrainingError(f"{folder} is no run", hint="give the folder that `dovetail train` wrote")
    with ExitStack() as things:
        held = lock or things.enter_context(RunLock(folder))
        blueprint = prepare(
            run, folder, model=model, source=source, resume=resumed, timeline=timeline, lock=held, tell=tell
        )
        with _started(blueprint, folder, model, source, held, is_new=not resumed) as processes:
            last = processes.wait(handle, stop=stop)
        total = blueprint.samples * run.training.epochs
        return read_result(folder, pace, total, last=last, model=model, source=source)


@contextmanager
def _started(
    blueprint: Blueprint, folder: Path, model: nn.Module | None, source: Source | None, lock: RunLock, *, is_new: bool
) -> Iterator[LocalRun]:
    """Start a run's processes; a new run whose processes do not start is none."""
    local = LocalRun(folder, model=model, source=source, lock=lock)
    try:
        local.__enter__()
    except BaseException:
        if is_new:
            undo(blueprint, folder)
        raise
    with ExitStack() as things:
        things.push(local)
        yield local


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
        if name == "metric":
            given["model.metric"] = _plain(value)
        elif name in ("model", "data", "worker", "servers"):
            raise SpecError("is not a setting of a run", key=name, hint=f"give `{name}s` or `{name}_options`")
        else:
            given[dotted_key(name)] = _plain(value)
    return given


def _plain(value: Any) -> Any:
    """Return a value as a file would hold it."""
    return msgspec.json.decode(msgspec.json.encode(value))
