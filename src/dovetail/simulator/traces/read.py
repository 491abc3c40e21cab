"""Any workload file, by its ending: ours (.json, .toml), Gavel's (.trace) or a table (.csv)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dovetail.errors import SpecError
from dovetail.simulator.traces.gavel import read_gavel
from dovetail.simulator.traces.nodes import parse_nodes
from dovetail.simulator.traces.table import read_table_workload
from dovetail.spec.workload import DEFAULT_RESTART_S, Workload, read_workload


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
