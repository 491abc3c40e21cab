"""Any workload file, by its ending: ours (.json, .toml), Gavel's (.trace) or a table (.csv).

A trace of Gavel's has one job a line, tab-separated: job type, command, folder, steps flag, needs data, total steps,
workers, weight, SLO, arrival seconds. Throughputs are steps a second by GPU type and (job type, workers); the keys that
end in `_unconsolidated` hold for workers spread over hosts. A trace says nothing of nodes: people write them on the
command line, `v100:4x2,k80:4x6`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import SpecError, did_you_mean
from dovetail.simulator.traces.table import read_lines, read_table_workload, whole_number
from dovetail.spec.files import read_table
from dovetail.spec.job import Job
from dovetail.spec.workload import DEFAULT_RESTART_S, NodeGroup, Workload, read_workload

_GROUP = re.compile(r"([^:,\s]+):(\d+)x(\d+)")


def parse_nodes(text: str) -> tuple[NodeGroup, ...]:
    """Return the nodes in `TYPE:WORKERSxCOUNT[,...]`: `v100:4x2` is two nodes of four V100 each."""
    groups = []
    for part in text.split(","):
        found = _GROUP.fullmatch(part.strip())
        if not found or int(found[2]) < 1 or int(found[3]) < 1:
            raise SpecError(
                f"`{part.strip()}` does not say which nodes there are",
                hint="write TYPE:WORKERSxCOUNT, e.g. v100:4x2,k80:4x6 for two nodes of four V100 and six of four K80",
            )
        groups.append(NodeGroup(type=found[1], workers=int(found[2]), count=int(found[3])))
    return tuple(groups)


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


def read_any(
    path: Path,
    *,
    nodes: str | None = None,
    speeds: Path | None = None,
    restart_s: float | None = None,
    round_s: float | None = None,
    elastic: bool = False,
) -> Workload:
    """Return the workload in a file; `nodes` and `speeds` are what a trace does not say itself.

    Given values stand in for the file's own; absent ones leave the file as it is.
    """
    ending = path.suffix.lower()
    if ending not in (".trace", ".csv"):
        workload = read_workload(path)
        given = {"nodes": parse_nodes(nodes) if nodes else None, "restart_s": restart_s, "round_s": round_s}
        wanted = {key: value for key, value in given.items() if value is not None}
        return msgspec.structs.replace(workload, **wanted) if wanted else workload
    if nodes is None:
        raise SpecError("says nothing of the cluster", file=str(path), hint="add --nodes, e.g. --nodes v100:4x16")
    pays_s = DEFAULT_RESTART_S if restart_s is None else restart_s
    groups = parse_nodes(nodes)
    if ending == ".csv":
        return read_table_workload(path, nodes=groups, restart_s=pays_s, round_s=round_s)
    if speeds is None:
        raise SpecError(
            "says nothing of speeds", file=str(path), hint="add --speeds FILE with Gavel's steps per second"
        )
    return read_gavel(path, speeds=speeds, nodes=groups, restart_s=pays_s, round_s=round_s, elastic=elastic)
