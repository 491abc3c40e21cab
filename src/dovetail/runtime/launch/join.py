"""One more worker for a run that goes on already."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from dovetail.data.source import Source
from dovetail.errors import DovetailError
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.fingerprint import differences, fingerprint_of
from dovetail.runtime.finished.restore import check_by_name, read_blueprint
from dovetail.runtime.folder import KEYS
from dovetail.runtime.launch.devices import check_device
from dovetail.runtime.launch.prepare import load_source
from dovetail.runtime.launch.reach import ask_how_it_goes
from dovetail.runtime.model.build import build_graph
from dovetail.runtime.model.parameters import dense_entries, sparse_modules
from dovetail.runtime.process import Process
from dovetail.runtime.worker.loop import work
from dovetail.spec.run import RunWorker
from dovetail.transport import drop_keys, make_keys


def join(
    folder: Path,
    *,
    name: str | None = None,
    threads: int = 1,
    device: str = "cpu",
    share_host: bool = True,
    model: nn.Module | None = None,
    data: Source | None = None,
    leaves: Callable[[], bool] = lambda: False,
) -> None:
    """Work for the run in `folder` until it is over, or until `leaves` returns True: others then do its tasks.

    With `share_host` off, tensors go over TCP: this machine is not the servers' own. `model` and `data` are those that
    the run began with, where they were objects. A run that does not go on, and data or code that are not the run's, are
    refused.
    """
    blueprint = read_blueprint(folder)
    check_by_name(blueprint.run, model=model, source=data)
    check_device(device, f"--device {device}")
    name = name or f"joined-{os.getpid()}"
    _check_name(name, blueprint)
    with _keys(folder, f"joins-{os.getpid()}") as asker:
        report = ask_how_it_goes(Process(folder, asker, is_local=share_host))
    if any(worker.name == name and worker.state == "working" for worker in report.workers):
        raise TrainingError(f"a worker called `{name}` works for the run already", hint="choose another --name")
    source = load_source(blueprint.run, data)
    _check_same(blueprint, source, model)
    with _keys(folder, name):
        process = Process(folder, name, is_local=share_host)
        try:
            work(process, RunWorker(name=name, threads=threads, device=device), source, model, leaves)
        except DovetailError:
            raise
        except Exception as problem:  # whatever a user's model or data raise
            traceback.print_exc()
            raise TrainingError(
                f"{type(problem).__name__}: {problem}",
                hint="its traceback is above; the run goes on without this worker",
            ) from None


@contextmanager
def _keys(folder: Path, name: str) -> Iterator[str]:
    """Have keys in the run's folder for as long as they are used."""
    make_keys(folder / KEYS, name)
    try:
        yield name
    finally:
        drop_keys(folder / KEYS, name)


def _check_name(name: str, blueprint: Blueprint) -> None:
    """Refuse the name of another process."""
    taken = {spec.name for spec in (blueprint.coordinator, *blueprint.servers)}
    taken |= {other for other, _ in blueprint.run.each_worker()}
    if name in taken:
        raise TrainingError(f"the run has a process called `{name}` already", hint="choose another --name")


def _check_same(blueprint: Blueprint, source: Source, model: nn.Module | None) -> None:
    """Refuse data, code or a model that are not the run's, with the difference."""
    if blueprint.fingerprint is not None:
        here = fingerprint_of(blueprint.run, source, _common_samples(blueprint.samples, source.num_samples))
        found = list(differences(blueprint.fingerprint, here))
        if found:
            raise TrainingError("; ".join(found), hint="join with the data and the code that the run began with")
    graph = build_graph(blueprint.run, source.schema, model)
    tables = {each.name: (spec.num_rows, spec.width) for each in sparse_modules(graph) for spec in [each.spec()]}
    dense = {entry.name: entry.shape for entry in dense_entries(graph)}
    its_tables = {spec.name: (spec.num_rows, spec.width) for spec in blueprint.tables}
    its_dense = {entry.name: entry.shape for entry in blueprint.dense}
    for what, own, its in (("table", tables, its_tables), ("parameter", dense, its_dense)):
        for key in [*its, *own]:
            if own.get(key) != its.get(key):
                raise TrainingError(
                    f"the model's {what} `{key}` is {_shape(own.get(key))} here, and {_shape(its.get(key))} in the run",
                    hint="join with the code that the run began with",
                )


def _common_samples(samples: int, num_samples: int | None) -> int:
    """Return how many samples of an epoch these data have."""
    return samples if num_samples is None else min(samples, num_samples)


def _shape(shape: tuple[int, ...] | None) -> str:
    """Return a shape in words."""
    return "missing" if shape is None else " x ".join(str(length) for length in shape) or "one number"
