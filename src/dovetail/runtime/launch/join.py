"""One more worker for a run that goes on already."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torch import nn

from dovetail.data.source import Source
from dovetail.errors import DovetailError
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError, cannot_write
from dovetail.runtime.finished.restore import check_by_name
from dovetail.runtime.folder import KEYS, log_of
from dovetail.runtime.launch.devices import check_device
from dovetail.runtime.launch.lock import Owner, owner_of
from dovetail.runtime.launch.prepare import load_source
from dovetail.runtime.launch.reach import ask_how_it_goes
from dovetail.runtime.looks import look_at, unlike
from dovetail.runtime.model.build import build_model
from dovetail.runtime.model.parameters import dense_entries, sparse_modules
from dovetail.runtime.process import Process
from dovetail.runtime.trust import check_trusted
from dovetail.runtime.worker.loop import work
from dovetail.spec.run import RunWorker
from dovetail.spec.run_workers import check_worker_name
from dovetail.transport import drop_keys, make_keys

LOOK_S = 0.5
"""How often a worker that joined looks whether its run is still there."""
GRACE_S = 10.0
"""How long it has to end by itself once the run is over: most are told, and do."""


def join(
    folder: Path,
    *,
    name: str | None = None,
    threads: int = 1,
    device: str = "cpu",
    share_host: bool = True,
    model: nn.Module | None = None,
    data: Source | None = None,
    trust: bool = False,
    leaves: Callable[[], bool] = lambda: False,
) -> None:
    """Work for the run in `folder` until it is over, or until `leaves` returns True: others then do its tasks.

    With `share_host` off, tensors go over TCP: this machine is not the servers' own. `model` and `data` are those that
    the run began with, where they were objects. A run that does not go on, and data or code that are not the run's, are
    refused. With `trust`, code that the folder names is run even where others can write the folder.
    """
    blueprint = Blueprint.read(folder)
    check_by_name(blueprint.run, model=model, source=data)
    check_trusted(folder, blueprint.run, trust=trust, own_model=model is not None, own_data=data is not None)
    check_device(device, f"--device {device}")
    name = name or f"joined-{os.getpid()}"
    check_worker_name(name)
    check_name_is_free(name, blueprint)
    owner = owner_of(folder)
    with run_keys(folder, f"joins-{os.getpid()}") as asker:
        process = Process(folder, asker, is_local=share_host)
        report = ask_how_it_goes(process, is_under_way=share_host and owner is not None)
    if any(worker.name == name and worker.state == "working" for worker in report.workers):
        raise TrainingError(f"a worker called `{name}` works for the run already", hint="choose another --name")
    source = load_source(blueprint.run, data)
    _check_same(blueprint, source, model)
    with run_keys(folder, name), _ended_with(folder, owner):
        process = Process(folder, name, is_local=share_host)
        try:
            work(process, RunWorker(name=name, threads=threads, device=device), source, model, leaves)
        except DovetailError:
            raise
        except Exception as problem:  # whatever a user's model or data raise
            with suppress(OSError):
                log_of(folder, name).write_text(traceback.format_exc())
            raise TrainingError(
                f"{type(problem).__name__}: {problem}",
                hint=f"its traceback is in {log_of(folder, name)}; the run goes on without this worker",
            ) from problem


@contextmanager
def run_keys(folder: Path, name: str) -> Iterator[str]:
    """Have keys in the run's folder for as long as they are used."""
    try:
        make_keys(folder / KEYS, name)
    except OSError as error:
        raise cannot_write(folder, error) from None
    try:
        yield name
    finally:
        with suppress(OSError):
            drop_keys(folder / KEYS, name)


def check_name_is_free(name: str, blueprint: Blueprint) -> None:
    """Refuse the name of another process."""
    taken = {spec.name for spec in (blueprint.coordinator, *blueprint.servers)}
    taken |= {other for other, _ in blueprint.run.each_worker()}
    if name in taken:
        raise TrainingError(f"the run has a process called `{name}` already", hint="choose another --name")


def _check_same(blueprint: Blueprint, source: Source, model: nn.Module | None) -> None:
    """Refuse data, code or a model that are not the run's, with the difference."""
    check_same_data(blueprint, source)
    built = build_model(blueprint.run, source.schema, model)
    tables = {each.name: (spec.num_rows, spec.width) for each in sparse_modules(built) for spec in [each.spec()]}
    dense = {entry.name: entry.shape for entry in dense_entries(built)}
    its_tables = {spec.name: (spec.num_rows, spec.width) for spec in blueprint.tables}
    its_dense = {entry.name: entry.shape for entry in blueprint.dense}
    for what, own, its in (("table", tables, its_tables), ("parameter", dense, its_dense)):
        for key in [*its, *own]:
            if own.get(key) != its.get(key):
                raise TrainingError(
                    f"the model's {what} `{key}` is {_shape(own.get(key))} here, and {_shape(its.get(key))} in the run",
                    hint="join with the code that the run began with",
                )


def check_same_data(blueprint: Blueprint, source: Source) -> None:
    """Refuse data and code that are not the run's, with the difference."""
    total = source.num_samples
    here = look_at(blueprint.run, source, blueprint.samples if total is None else min(blueprint.samples, total))
    if found := list(unlike(blueprint.looks, here)):
        raise TrainingError("; ".join(found), hint="join with the data and the code that the run began with")


def _shape(shape: tuple[int, ...] | None) -> str:
    """Return a shape in words."""
    return "missing" if shape is None else " x ".join(str(length) for length in shape) or "one number"


@contextmanager
def _ended_with(folder: Path, owner: Owner | None) -> Iterator[None]:
    """Have this process end some time after its run is no more, unless the work ends first."""
    done = threading.Event()
    if owner is not None:
        arguments = (folder, owner, done)
        threading.Thread(target=_end_with_run, args=arguments, name="dovetail-run", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _end_with_run(folder: Path, owner: Owner, done: threading.Event) -> None:
    """End this process some time after its run is no more: it may wait for a ring that nobody will ever join."""
    while owner_of(folder) == owner:
        if done.wait(LOOK_S):
            return
    if done.wait(GRACE_S):
        return
    print(  # noqa: T201
        f"error: the run ended: {owner}, which it belonged to, is gone\n\n"
        f"hint: go on with: dovetail train --resume {folder}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)
