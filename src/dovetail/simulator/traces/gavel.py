"""Gavel's job traces with its measured throughputs.

A trace has one job a line, tab-separated: job type, command, folder, steps flag, needs data, total steps, workers,
weight, SLO, arrival seconds. Throughputs are steps a second by GPU type and (job type, workers); the keys that end in
`_unconsolidated` hold for workers spread over hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.errors import SpecError, did_you_mean
from dovetail.simulator.traces.lines import read_lines, whole_number
from dovetail.spec.files import read_table
from dovetail.spec.job import Job
from dovetail.spec.workload import NodeGroup, Workload

COLUMNS = 10


def read_gavel(
    path: Path,
    *,
    speeds: Path,
    nodes: tuple[NodeGroup, ...],
    restart_s: float,
    round_s: float | None = None,
    elastic: bool = False,
) -> Workload:
    """Return a Gavel trace as a workload: each job on as many workers as it asked for, or `elastic` on all measured."""
    throughputs = read_table(speeds)
    types = tuple(dict.fromkeys(group.type for group in nodes))
    for name in types:
        if name not in throughputs:
            raise SpecError(
                f"holds no speeds for type `{name}`", file=str(speeds), hint=did_you_mean(name, throughputs)
            )
    jobs = []
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split("\t")
        if len(fields) != COLUMNS:
            raise SpecError(
                f"line {number} has {len(fields)} columns, expected {COLUMNS}",
                file=str(path),
                hint="a Gavel trace is tab-separated: job type, command, folder, ..., steps, workers, ..., arrival",
            )
        steps = whole_number(fields[5], what="total steps", number=number, path=path)
        workers = whole_number(fields[6], what="workers", number=number, path=path)
        submit_s = whole_number(fields[9], what="arrival", number=number, path=path)
        table = {name: _curve(throughputs[name], fields[0], workers, elastic=elastic) for name in types}
        table = {name: curve for name, curve in table.items() if curve}
        if not table:
            known = sorted({key.split("'")[1] for name in types for key in throughputs[name] if "'" in key})
            raise SpecError(
                f"line {number}: no speed is known for `{fields[0]}` on {workers} workers",
                file=str(path),
                hint=did_you_mean(fields[0], known),
            )
        jobs.append(
            Job(
                id=f"{number - 1}",
                submit_s=float(submit_s),
                work=float(steps),
                speed=table,
                weight=float(fields[7]),
                kind=fields[0],
            )
        )
    if not jobs:
        raise SpecError("holds no jobs", file=str(path), hint="give a trace with one job a line")
    try:
        return Workload(nodes=nodes, jobs=tuple(jobs), restart_s=restart_s, round_s=round_s)
    except SpecError as error:
        raise error.in_file(str(path)) from None


def _curve(throughputs: Mapping[str, Any], kind: str, workers: int, *, elastic: bool) -> dict[str, float]:
    """Return a job's speed table on one type: the workers it asked for, or all that were measured."""
    curve = {}
    for count in (1, 2, 4, 8) if elastic else (workers,):
        entry = throughputs.get(f"('{kind}', {count})")
        speed = entry.get("null") if isinstance(entry, dict) else entry
        if isinstance(speed, int | float) and speed > 0:
            curve[str(count)] = float(speed)
    return curve
