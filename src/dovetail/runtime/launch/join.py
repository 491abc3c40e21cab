"""One more worker for a run that goes on already."""

from __future__ import annotations

import os
from pathlib import Path

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import KEYS
from dovetail.runtime.launch.prepare import load_source
from dovetail.runtime.process import Process
from dovetail.runtime.worker.loop import work
from dovetail.spec.run import RunWorker, check_worker_name
from dovetail.transport import make_keys


def join(
    folder: Path, *, name: str | None = None, threads: int = 1, device: str = "cpu", share_host: bool = True
) -> None:
    """Work for the run in `folder` until it is over, or until this process is ended: others then do its tasks.

    With `share_host` off, tensors go over TCP: this machine is not the servers' own.
    """
    blueprint = Blueprint.read(folder)
    name = name or f"joined-{os.getpid()}"
    check_worker_name(name)
    taken = {spec.name for spec in (blueprint.coordinator, *blueprint.servers)}
    taken |= {other for other, _ in blueprint.run.each_worker()}
    if name in taken:
        raise TrainingError(f"the run has a process called `{name}` already", hint="choose another --name")
    make_keys(folder / KEYS, name)
    process = Process(folder, name, is_local=share_host)
    settings = RunWorker(name=name, threads=threads, device=device)
    work(process, settings, load_source(blueprint.run))
