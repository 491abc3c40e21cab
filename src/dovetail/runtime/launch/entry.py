"""Where each process of a run begins."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import DovetailError
from dovetail.logs import JsonLines, tell_as
from dovetail.open_files import allow_many_files
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.folder import log_of
from dovetail.runtime.launch.fork_server import LEAVE
from dovetail.runtime.process import Process
from dovetail.spec.run import Run, RunWorker

EnterHost = Callable[[], None]
"""Takes the calling process to another host; it travels to a worker's process, so it must be picklable."""
PR_SET_NAME = 15
"""What `ps -o comm` shows: its first fifteen letters."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 1 << 30
EXTRA = "extra"
"""What workers are called, with a number, that the run file does not name."""


def begin(folder: Path, name: str) -> None:
    """Write to the process's own log from now on."""
    try:
        log = os.open(log_of(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)  # a full disk is no reason not to begin
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    _name_run(folder, name)
    allow_many_files()
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.prctl(PR_SET_NAME, name.encode())
        if hasattr(library, "mallopt"):
            # Every step takes and gives back the same megabytes: kept by the process, they need no new pages.
            library.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
            library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    faulthandler.enable()


def _name_run(folder: Path, name: str) -> None:
    """Begin the log with the run's id; where programs read it, every line has that."""
    with suppress(DovetailError):  # whoever needs the blueprint says what is wrong with it
        blueprint = Blueprint.read(folder)
        if blueprint.run.log.format == "json":
            sys.stdout = sys.stderr = JsonLines(sys.stderr, role=name, run=blueprint.id)
        tell_as(name, f"run {blueprint.id}, process {os.getpid()}", process=os.getpid())


def guarded(name: str, function: Any, *arguments: Any) -> int:
    """Run a process's function; return its exit status, with what went wrong in the log."""
    try:
        function(*arguments)
    except DovetailError as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr, flush=True)  # noqa: T201
        return 1
    except OSError as error:
        print(f"error: {error}\nhint: check the disk", file=sys.stderr, flush=True)  # noqa: T201
        traceback.print_exc()
        return 1
    except Exception:
        print(f"{time.strftime('%H:%M:%S')} {name} failed", file=sys.stderr)  # noqa: T201
        traceback.print_exc()
        return 1
    return 0


def run_worker(folder: str, name: str, model: Any, source: Any, enter_host: EnterHost | None) -> None:
    """Be a worker; called in a process that has torch already, and has asked no GPU for anything."""
    begin(Path(folder), name)
    sys.exit(guarded(name, _work, Path(folder), name, model, source, enter_host))


def _work(folder: Path, name: str, model: Any, source: Any, enter_host: EnterHost | None) -> None:
    """Enter the worker's host where it has one of its own, then work."""
    from dovetail.runtime.prepare.run_folder import load_source  # noqa: PLC0415 - only workers need torch
    from dovetail.runtime.worker.loop import work  # noqa: PLC0415
    from dovetail.runtime.worker.stages.loop import work_in_stage  # noqa: PLC0415

    told = threading.Event()
    signal.signal(LEAVE, lambda *_: told.set())
    if enter_host is not None:
        enter_host()
    process = Process(folder, name, is_local=enter_host is None)
    settings = dict(process.blueprint.run.each_worker()).get(name) or first_worker(process.blueprint.run)
    data = load_source(process.blueprint.run, source)
    if settings.stage:
        work_in_stage(process, settings, data, model)
    else:
        work(process, settings, data, model, told.is_set)


def run_sharded(folder: str, name: str, model: Any, source: Any, generation: int) -> None:
    """Be a worker that owns a part of the rows."""
    begin(Path(folder), name)
    sys.exit(guarded(name, _train_part, Path(folder), name, model, source, generation))


def _train_part(folder: Path, name: str, model: Any, source: Any, generation: int) -> None:
    """Train a part of every batch."""
    from dovetail.runtime.trainer.sharded.worker import train_part  # noqa: PLC0415 - only workers need torch

    train_part(folder, name, model, source, generation)


def first_worker(run: Run) -> RunWorker:
    """Return the settings of a worker that the run file does not name: those of its first, by its own speed."""
    first = run.each_worker()[0][1]
    return msgspec.structs.replace(first, name=EXTRA, count=1, share=None)


def run_role(folder: str, name: str) -> None:
    """Be the coordinator or a server."""
    begin(Path(folder), name)
    sys.exit(guarded(name, _serve, Path(folder), name))


def _serve(folder: Path, name: str) -> None:
    """Run the role that a name stands for."""
    process = Process(folder, name)
    if name == process.blueprint.coordinator.name:
        from dovetail.runtime.coordinator.loop import coordinate  # noqa: PLC0415 - only the role that is asked for

        coordinate(process)
    else:
        from dovetail.runtime.server.loop import serve  # noqa: PLC0415 - compiles, which the coordinator need not

        serve(process)
