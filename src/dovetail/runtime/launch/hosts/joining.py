"""More workers for a run that goes on already, one on each of some hosts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.restore import check_by_name
from dovetail.runtime.folder import log_of
from dovetail.runtime.launch.hosts.fleet import Fleet, is_loopback
from dovetail.runtime.launch.hosts.placing import Places
from dovetail.runtime.launch.hosts.protocol import Handle
from dovetail.runtime.launch.join import check_name_is_free, run_keys
from dovetail.runtime.launch.lock import owner_of
from dovetail.runtime.launch.reach import ask_how_it_goes
from dovetail.runtime.process import Process
from dovetail.runtime.trust import check_trusted
from dovetail.spec.run import RunWorker, check_worker_name

LOOK_S = 0.1
LEAVE_S = 10.0
"""How long a worker may take to leave before it is ended."""


def join_on(
    folder: Path,
    fleet: Fleet,
    *,
    name: str | None = None,
    threads: int = 1,
    device: str = "cpu",
    trust: bool = False,
    leaves: Callable[[], bool] = lambda: False,
) -> None:
    """Have a worker on every host of a fleet work for a run, until it is over or `leaves` returns True.

    They are called `name-HOST`. Where some fail the others go on; what went wrong is told at the end.
    """
    blueprint = Blueprint.read(folder)
    check_by_name(blueprint.run, model=None, source=None)
    check_trusted(folder, blueprint.run, trust=trust)
    address = blueprint.run.network.address
    if is_loopback(address) and not all(is_loopback(host.reached_at) for host in fleet.hosts):
        raise TrainingError(
            f"the run listens on {address}, which other hosts do not reach",
            hint="start it with --on, or with --set network.address=ADDRESS, one that they reach",
        )
    stem = name or f"joined-{os.getpid()}"
    names = {host.name: f"{stem}-{host.name}" for host in fleet.hosts}
    for each in names.values():
        check_worker_name(each)
        check_name_is_free(each, blueprint)
    with ExitStack() as things:
        asker = things.enter_context(run_keys(folder, f"joins-{os.getpid()}"))
        ask_how_it_goes(Process(folder, asker), is_under_way=owner_of(folder) is not None)
        fleet.places = Places(fleet.hosts)
        handles: dict[str, Handle] = {}
        for host, each in names.items():
            things.enter_context(run_keys(folder, each))
            worker = RunWorker(name=each, threads=threads, device=device, host=host)
            handles[each] = fleet.start_as(worker, each, folder, blueprint.run)
        _wait(handles, leaves)
    if bad := [each for each, handle in handles.items() if handle.how_it_ended() != "exit status 0"]:
        how = handles[bad[0]].how_it_ended()
        raise TrainingError(
            f"{bad[0]}, on host `{handles[bad[0]].host}`: {how}: {_last_words(folder, bad[0])}",
            hint=f"its log is {log_of(folder, bad[0])}; the run goes on without this worker",
        )


def _wait(handles: dict[str, Handle], leaves: Callable[[], bool]) -> None:
    """Wait until all have ended; when they are to leave, ask them, and end those that do not."""
    asked_s: float | None = None
    while running := [handle for handle in handles.values() if handle.how_it_ended() is None]:
        if asked_s is None and leaves():
            asked_s = time.monotonic()
            for handle in running:
                handle.ask_to_leave()
        if asked_s is not None and time.monotonic() - asked_s > LEAVE_S:
            for handle in running:
                handle.kill()
        time.sleep(LOOK_S)


def _last_words(folder: Path, name: str) -> str:
    """Return the last error in a worker's log."""
    path = log_of(folder, name)
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it said nothing"])[-1]
