"""Tables of jobs: CSV with a header and the columns submit, duration and gpus, under their usual names.

What reads the lines of other people's text files is here too; its errors name the file and the line.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail.errors import SpecError, did_you_mean
from dovetail.spec.job import Job
from dovetail.spec.workload import NodeGroup, Workload


def read_lines(path: Path) -> list[str]:
    """Return a text file's lines that are not blank."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SpecError("no such file", file=str(path), hint="give the path of a trace") from None
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", file=str(path), hint="give the path of a trace") from None
    except UnicodeDecodeError:
        raise SpecError("is not text", file=str(path), hint="give a trace in UTF-8") from None
    return [line for line in text.splitlines() if line.strip()]


def whole_number(text: str, *, what: str, number: int, path: Path) -> int:
    """Return a field as a whole number, or say on which line it is none."""
    if not text.strip().isdigit():
        raise SpecError(
            f"line {number}: {what} is `{text.strip()}`", file=str(path), hint="expected a whole number there"
        )
    return int(text)


def number_in(text: str, *, what: str, number: int, path: Path) -> float:
    """Return a field as a number of at least zero, or say on which line it is none."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e15:
        raise SpecError(
            f"line {number}: {what} is `{text.strip()}`",
            file=str(path),
            hint="expected a number of at least zero there",
        )
    return value


NAMES = {
    "submit": ("submit", "submit_s", "submit_time", "arrival", "arrival_s"),
    "duration": ("duration", "duration_s", "runtime", "run_time"),
    "gpus": ("gpus", "num_gpu", "num_gpus", "gpu_num", "workers"),
    "id": ("id", "job_id", "jobid", "name"),
    "kind": ("kind", "model", "model_name"),
    "user": ("user", "vc", "owner"),
}
NEEDED = ("submit", "duration", "gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJob:
    """One row of a table: a job that asked for `gpus` and took `duration_s` on them."""

    id: str
    submit_s: float
    duration_s: float
    gpus: int
    kind: str | None
    user: str | None


def read_jobs(path: Path) -> list[TableJob]:
    """Return a table's jobs; those without GPUs or without duration are left out."""
    lines = read_lines(path)
    if not lines:
        raise SpecError("is empty", file=str(path), hint="the first line names the columns: submit,duration,gpus")
    header, *rows = csv.reader(lines)
    place = _columns([name.strip().lower() for name in header], path)
    jobs = []
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise SpecError(
                f"line {number} has {len(row)} columns, the header has {len(header)}",
                file=str(path),
                hint="every line has a value for every column",
            )
        submit_s, duration_s, gpus = (
            number_in(row[place[name]], what=name, number=number, path=path) for name in NEEDED
        )
        if gpus < 1 or duration_s <= 0:
            continue
        jobs.append(
            TableJob(
                id=row[place["id"]] if "id" in place else str(number - 2),
                submit_s=submit_s,
                duration_s=duration_s,
                gpus=int(gpus),
                kind=row[place["kind"]] if "kind" in place else None,
                user=row[place["user"]] if "user" in place else None,
            )
        )
    if not jobs:
        raise SpecError("holds no job with GPUs and a duration", file=str(path), hint="give at least one")
    return jobs


def read_table_workload(
    path: Path, *, nodes: tuple[NodeGroup, ...], restart_s: float, round_s: float | None = None
) -> Workload:
    """Return a table as a workload of jobs that run on exactly the workers they asked for, on every type alike."""
    types = tuple(dict.fromkeys(group.type for group in nodes))
    jobs = tuple(rigid_job(job, types) for job in read_jobs(path))
    try:
        return Workload(nodes=nodes, jobs=jobs, restart_s=restart_s, round_s=round_s)
    except SpecError as error:
        raise error.in_file(str(path)) from None


def rigid_job(job: TableJob, types: Sequence[str]) -> Job:
    """Return a row as a job of fixed size: with its workers it goes at speed 1, so its work is its duration."""
    return Job(
        id=job.id,
        submit_s=job.submit_s,
        work=job.duration_s,
        min_workers=job.gpus,
        max_workers=job.gpus,
        speed={name: {str(job.gpus): 1.0} for name in types},
        kind=job.kind,
        user=job.user,
    )


def _columns(header: Sequence[str], path: Path) -> dict[str, int]:
    """Return where each column stands, under whichever of its names it goes."""
    place = {}
    for meaning, names in NAMES.items():
        found = next((name for name in names if name in header), None)
        if found is not None:
            place[meaning] = header.index(found)
        elif meaning in NEEDED:
            raise SpecError(
                f"has no column `{meaning}` (nor {', '.join(f'`{name}`' for name in names[1:])})",
                file=str(path),
                hint=did_you_mean(meaning, header),
            )
    return place
