"""What is started for a job: `dovetail train` for a run file, anew or from its checkpoint, and commands as given."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from dovetail.atomic_file import replace_file
from dovetail.runtime.folder import BLUEPRINT, SIZE, TEAM
from dovetail.serve.launcher import JobAttempt
from dovetail.serve.progress import PROGRESS, RUN
from dovetail.serve.settings import hosts_with
from dovetail.serve.store import JobRecord
from dovetail.spec.hosts import HostsFile

RUN_FILE = "run.json"
HOSTS_FILE = "hosts.json"
GPU_TYPES = ("cuda", "gpu")
"""Types whose workers compute on a GPU; those of any other compute where the run file says."""
DOVETAIL = (sys.executable, "-c", "from dovetail.cli.main import main; main()")


class TrainResult(msgspec.Struct, frozen=True):
    """What `dovetail train --json` says at its end."""

    is_complete: bool
    loss: float | None = None
    auc: float | None = None
    samples: int | None = None


def gpus_of(job: JobRecord) -> tuple[str, ...]:
    """Return the GPUs of the units that a job holds, as CUDA_VISIBLE_DEVICES names them; of other types none.

    A daemon that sees only some of the machine's GPUs shares those: unit 0 is the first of them.
    """
    if job.type not in GPU_TYPES:
        return ()
    seen = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    return tuple(seen[unit] if unit < len(seen) else str(unit) for unit in job.units)


def task_of(job: JobRecord, folder: Path) -> JobAttempt:
    """Return an attempt at a job, whose files lie in `folder`."""
    submission = job.submission
    words = _train_words(job, folder) if submission.run is not None else _command_words(job)
    environment = {
        **submission.environment,
        "DOVETAIL_JOB": job.id,
        "DOVETAIL_WORKERS": str(job.workers),
        "DOVETAIL_TYPE": job.type or "",
        "DOVETAIL_UNITS": ",".join(map(str, job.units)),
        "DOVETAIL_JOB_FOLDER": str(folder),
        "DOVETAIL_PROGRESS": str(folder / PROGRESS),
    }
    if gpus := gpus_of(job):
        environment |= {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "DOVETAIL_GPUS": ",".join(gpus)}
    return JobAttempt(
        job=job.id,
        attempt=job.attempt,
        folder=folder,
        words=words,
        work_folder=submission.folder,
        environment=tuple(environment.items()),
    )


def _train_words(job: JobRecord, folder: Path) -> tuple[str, ...]:
    run = folder / RUN
    size = () if job.submission.fixed_workers else ("--workers", str(job.workers))
    where = ("--resume", str(run)) if (run / BLUEPRINT).exists() else ("--out", str(run))
    hosts = ("--on", str(folder / HOSTS_FILE)) if (folder / HOSTS_FILE).exists() else ()
    return (*DOVETAIL, "train", str(folder / RUN_FILE), *where, *size, *hosts, "--json")


def _command_words(job: JobRecord) -> tuple[str, ...]:
    return tuple(word.replace("{workers}", str(job.workers)) for word in job.submission.command or ())


def write_run_file(job: JobRecord, folder: Path, hosts: HostsFile | None = None) -> None:
    """Write the run file of a job into its folder, for workers of the type that it was given, and their hosts.

    What the attempt before said of its workers goes: nobody is to take it for this one's.
    """
    if job.submission.run is None:
        return
    for name in (SIZE, TEAM):
        (folder / RUN / name).unlink(missing_ok=True)
    if hosts is not None:
        replace_file(folder / HOSTS_FILE, msgspec.json.encode(hosts_with(hosts, job.type or "", job.units)))
    run = dict(job.submission.run)
    there = () if hosts is None else hosts.hosts
    if any(host.on_gpu for host in there if host.type == job.type) or (hosts is None and job.type in GPU_TYPES):
        run["worker"] = [{**worker, "device": "cuda"} for worker in run.get("worker") or [{}]]
    (folder / RUN_FILE).write_bytes(msgspec.json.encode(run))


def outcome_of(task: JobAttempt) -> TrainResult | None:
    """Return what an attempt at a run said at its end, where it did; OSError: that cannot be told."""
    try:
        last = (task.folder / f"out-{task.attempt}").read_bytes().strip().splitlines()[-1]
        return msgspec.json.decode(last, type=TrainResult)
    except (FileNotFoundError, IndexError, msgspec.MsgspecError):
        return None
