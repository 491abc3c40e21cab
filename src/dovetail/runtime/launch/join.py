"""One more worker for a run that goes on already."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

from dovetail.errors import DovetailError
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError, cannot_write
from dovetail.runtime.folder import KEYS, log_of
from dovetail.runtime.launch.lock import Owner, owner_of
from dovetail.runtime.launch.prepare import load_source
from dovetail.runtime.process import Process
from dovetail.runtime.trust import check_trusted
from dovetail.runtime.worker.loop import work
from dovetail.spec.run import RunWorker, check_worker_name
from dovetail.transport import make_keys

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
    trust: bool = False,
) -> None:
    """Work for the run in `folder` until it is over, or until this process is ended: others then do its tasks.

    With `share_host` off, tensors go over TCP: this machine is not the servers' own. With `trust`, code that the folder
    names is run even where others can write the folder.
    """
    blueprint = Blueprint.read(folder)
    check_trusted(folder, blueprint.run, trust=trust)
    name = name or f"joined-{os.getpid()}"
    check_worker_name(name)
    taken = {spec.name for spec in (blueprint.coordinator, *blueprint.servers)}
    taken |= {other for other, _ in blueprint.run.each_worker()}
    if name in taken:
        raise TrainingError(f"the run has a process called `{name}` already", hint="choose another --name")
    owner = owner_of(folder)
    if share_host and owner is None:
        raise TrainingError(
            f"{folder} is not under way: no process has it", hint=f"go on with: dovetail train --resume {folder}"
        )
    try:
        make_keys(folder / KEYS, name)
    except OSError as error:
        raise cannot_write(folder, error) from None
    process = Process(folder, name, is_local=share_host)
    settings = RunWorker(name=name, threads=threads, device=device)
    if owner is not None:
        threading.Thread(target=_end_with_run, args=(folder, owner), name="dovetail-run", daemon=True).start()
    try:
        work(process, settings, load_source(blueprint.run))
    except DovetailError:
        raise
    except Exception as problem:
        with suppress(OSError):
            log_of(folder, name).write_text(traceback.format_exc())
        raise TrainingError(
            f"{type(problem).__name__}: {problem}", hint=f"its traceback is in {log_of(folder, name)}"
        ) from problem


def _end_with_run(folder: Path, owner: Owner) -> None:
    """End this process some time after its run is no more: it may wait for a ring that nobody will ever join."""
    while owner_of(folder) == owner:
        time.sleep(LOOK_S)
    time.sleep(GRACE_S)
    print(  # noqa: T201
        f"error: the run ended: {owner}, which it belonged to, is gone\n\n"
        f"hint: go on with: dovetail train --resume {folder}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)
