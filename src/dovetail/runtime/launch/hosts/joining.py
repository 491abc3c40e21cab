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
from dovetail.spec.run import RunWorker
from dovetail.spec.run_workers import check_worker_name

LOOK_S = 0.1
LEAVE_S = 10.0
"""How long a worker may take to leave before it is ended, and to hear that its run is over."""


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
        owner = owner_of(folder)
        ask_how_it_goes(Process(folder, asker), is_under_way=owner is not None)
        fleet.places = Places(fleet.hosts)
        handles: dict[str, Handle] = {}
        for host, each in names.items():
            things.enter_context(run_keys(folder, each))
            worker = RunWorker(name=each, threads=threads, device=device, host=host)
            handles[each] = fleet.start_as(worker, each, folder, blueprint.run)
        was_over = _wait(handles, leaves, is_over=lambda: owner_of(folder) != owner)
    if was_over:  # it was told to nobody who had not begun yet
        return
    if bad := [each for each, handle in handles.items() if handle.how_it_ended() != "exit status 0"]:
        how = handles[bad[0]].how_it_ended()
        raise TrainingError(
            f"{bad[0]}, on host `{handles[bad[0]].host}`: {how}: {_last_words(folder, bad[0])}",
            hint=f"its log is {log_of(folder, bad[0])}; the run goes on without this worker",
        )


def _wait(handles: dict[str, Handle], leaves: Callable[[], bool], is_over: Callable[[], bool]) -> bool:
    """Wait until all have ended, and return whether some had to be ended for a run that was over.

    When they are to leave they are asked, and those that do not are ended.
    """
    asked_s: float | None = None
    while running := [handle for handle in handles.values() if handle.how_it_ended() is None]:
        if asked_s is None and (leaves() or is_over()):
            asked_s = time.monotonic()
            for handle in running if leaves() else []:
                handle.ask_to_leave()
        if asked_s is not None and time.monotonic() - asked_s > LEAVE_S:
            for handle in running:
                handle.kill()
            for handle in running:
                handle.wait(LEAVE_S)
            return not leaves()
        time.sleep(LOOK_S)
    return False


def _last_words(folder: Path, name: str) -> str:
    """Return the last error in a worker's log."""
    path = log_of(folder, name)
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it said nothing"])[-1]
