"""More workers for a run that goes on already: one here, or one on each of some hosts."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from torch import nn

from dovetail.data.source import Source
from dovetail.errors import DovetailError
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError, cannot_write
from dovetail.runtime.finished.restore import check_by_name
from dovetail.runtime.folder import KEYS, SUMMARY, log_of
from dovetail.runtime.launch.hosts.fleet import Fleet, is_loopback
from dovetail.runtime.launch.hosts.protocol import Handle
from dovetail.runtime.messages import Report, Status
from dovetail.runtime.model.build import build_model
from dovetail.runtime.model.parameters import dense_entries, sparse_modules
from dovetail.runtime.prepare.devices import check_device
from dovetail.runtime.prepare.lock import Owner, owner_of
from dovetail.runtime.prepare.placement import UnitPlacement
from dovetail.runtime.prepare.run_folder import load_source
from dovetail.runtime.prepare.source_fingerprint import source_fingerprint, unlike
from dovetail.runtime.process import Process
from dovetail.runtime.trust import check_trusted
from dovetail.runtime.worker.loop import work
from dovetail.spec.run import RunWorker
from dovetail.spec.run_sections import check_worker_name
from dovetail.transport import drop_keys, make_keys

CONNECT_S = 5.0
"""How long an address may take to accept a connection."""
ANSWER_S = 5.0
"""How long a coordinator may take to answer."""
START_S = 30.0
"""How long a coordinator may take to listen where its launcher is there: it starts, or comes back."""
LISTEN_LOOK_S = 0.2


def ask_how_it_goes(process: Process, *, is_under_way: bool = False, answer_s: float = ANSWER_S) -> Report:
    """Return how the run goes whose folder a process looks at; refuse one that does not go on.

    `is_under_way` says that its launcher is there: whoever is to listen may still be starting.
    """
    spec, folder = process.blueprint.coordinator, process.folder
    address = spec.local_address if process.is_local else spec.address
    until_s = time.monotonic() + (START_S if is_under_way else 0.0)
    while not (is_open := _is_open(address)) and time.monotonic() < until_s:
        time.sleep(LISTEN_LOOK_S)
    if not is_open:
        if (folder / SUMMARY).is_file():
            raise TrainingError(
                f"the run in {folder} is over", hint=f"go on with: dovetail train --resume {folder} --epochs N"
            )
        raise TrainingError(
            f"{folder} is not under way: nobody listens at {address}",
            hint=f"go on with: dovetail train --resume {folder}; from another machine, join with --over-network and "
            "have network.address set",
        )
    line = process.call_coordinator()
    try:
        line.ask(Status())
        envelope = line.receive(answer_s)
    finally:
        line.close()
    if envelope is None or not isinstance(envelope.message, Report):
        raise TrainingError(
            f"whoever listens at {address} does not answer to the keys in {folder}",
            hint="give the run's own folder, not a copy: whoever joins leaves a key there for the coordinator to find",
        )
    if envelope.message.state in ("done", "failed"):
        raise TrainingError(
            f"the run in {folder} is over: {envelope.message.state}", hint=f"see what it came to in {folder}/{SUMMARY}"
        )
    return envelope.message


def _is_open(address: str) -> bool:
    """Say whether something accepts connections at an address of ZeroMQ's."""
    scheme, _, place = address.partition("://")
    try:
        if scheme == "ipc":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(CONNECT_S)
                probe.connect(str(Path(place)))
        else:
            host, _, port = place.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError:
        return False
    return True


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
    total, samples = source.num_samples, blueprint.population or blueprint.samples
    here = source_fingerprint(blueprint.run, source, samples if total is None else min(samples, total))
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


HOSTS_LOOK_S = 0.1
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
        fleet.places = UnitPlacement(fleet.hosts)
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
        time.sleep(HOSTS_LOOK_S)
    return False


def _last_words(folder: Path, name: str) -> str:
    """Return the last error in a worker's log."""
    path = log_of(folder, name)
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it said nothing"])[-1]
