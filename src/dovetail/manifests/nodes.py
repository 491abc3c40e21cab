"""The machines that a plan asks for: for each of its types so many nodes of so many units, and one that leads.

The first node holds no units. It runs what is not a worker: the launcher, the coordinator and the servers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.catalogue import Catalogue
from dovetail.errors import SpecError, did_you_mean
from dovetail.manifests.pool import NodePool
from dovetail.manifests.prices import NodePrices, prices_of, size_of_first_node
from dovetail.runtime.launch.hosts.shipped_files import data_of
from dovetail.runtime.planned.units import units_of
from dovetail.spec.plan import Plan
from dovetail.spec.problem import Problem
from dovetail.spec.run import Run

PLAN, RUN = "plan.json", "run.toml"
"""What plan and run file are called where they are started."""
LONGEST_NAME = 40
"""Kubernetes takes 63 letters of a name, and operators add some of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNodes:
    """Everything that a manifest says."""

    name: str
    groups: tuple[NodePool, ...]
    head_cores: int
    head_bytes: int
    plan: str
    """The plan file's text."""
    run: str | None
    """The run file's text; None where it is put beside the manifest later."""
    image: str
    prices: NodePrices
    code: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the user's own code, by the path under which the run file's folder has them."""
    data: tuple[str, ...] = ()
    """Where the run reads its data, on a disk."""
    claim: str | None = None
    """On Kubernetes: where the run's folder is kept."""
    data_claim: str | None = None
    """On Kubernetes: a volume that holds the data."""

    @property
    def cloud(self) -> str | None:
        """The one cloud that all types are rented from, where there is one."""
        clouds = {group.cloud for group in self.groups}
        return clouds.pop() if len(clouds) == 1 else None

    @property
    def num_nodes(self) -> int:
        """How many there are, the first one included."""
        return 1 + sum(group.nodes for group in self.groups)


def planned_nodes(
    plan: Plan,
    *,
    plan_text: str,
    run: Run | None = None,
    run_text: str | None = None,
    problem: Problem | None = None,
    catalogue: Catalogue | None = None,
    per_node: Mapping[str, int] | None = None,
    name: str = "dovetail",
    image: str = "dovetail",
    code: Mapping[str, bytes] | None = None,
    claim: str | None = None,
    data_claim: str | None = None,
) -> PlannedNodes:
    """Return the nodes for a plan's units; `per_node` says how many units of a type one node has, else it is one."""
    wanted: dict[str, int] = {}
    for stage in plan.stages:
        wanted[stage.resource] = wanted.get(stage.resource, 0) + stage.units
    for type_ in per_node or {}:
        if type_ not in wanted:
            raise SpecError(f"`{type_}` is no type of the plan", key="--per-node", hint=did_you_mean(type_, wanted))
    units = units_of(plan.stages, problem, catalogue)
    entries = {entry.instance: entry for entry in (catalogue or {}).values()} | dict(catalogue or {})
    groups: list[NodePool] = []
    for type_, count in wanted.items():
        each, entry, unit = (per_node or {}).get(type_, 1), entries.get(type_), units[type_]
        per_unit = unit.size if not unit.on_gpu else int((entry and entry.vcpus) or unit.size)
        groups.append(
            NodePool(
                type=type_,
                name=_free_name(name_of(type_), [group.name for group in groups]),
                nodes=-(-count // each),
                units=each,
                cores=each * per_unit,
                gpus=each * unit.size if unit.on_gpu else 0,
                cloud=entry.cloud if entry is not None else None,
                instance=entry.instance if entry is not None else None,
                accelerator=entry.accelerator if entry is not None else None,
                is_spot=plan.spot and entry is not None,
            )
        )
    servers = plan.servers if plan.servers is not None else run.servers.count if run is not None else 1
    host_bytes = run.servers.host_bytes if run is not None else 1 << 30
    head_cores, head_bytes = size_of_first_node(servers, host_bytes)
    return PlannedNodes(
        name=name_of(name),
        groups=tuple(groups),
        head_cores=head_cores,
        head_bytes=head_bytes,
        prices=prices_of(plan, groups, head_cores, head_bytes, problem=problem, entries=entries),
        code=dict(code or {}),
        data=() if run is None else data_of(run),
        data_claim=data_claim,
        plan=plan_text,
        run=run_text,
        image=image,
        claim=claim,
    )


def notes(planned: PlannedNodes, *, here: str) -> list[str]:
    """Return what whoever starts it should know: the price, and how code and data get there.

    `here` says what becomes of the manifest's folder.
    """
    lines = [f"Costs {planned.prices}"]
    spot = [group.type for group in planned.groups if group.is_spot]
    if spot:
        lines.append(f"Spot: {', '.join(spot)} may be taken back at any time; the run goes on with what is left.")
    if planned.code:
        lines.append(f"Your own code goes along: {', '.join(planned.code)}.")
    for path in planned.data:
        if path.startswith("/"):
            lines.append(f"Data: every node needs {path}, at that path; an address such as s3://... needs no copy.")
        else:
            lines.append(f"Data: put {path} {here}; an address such as s3://... needs no copy.")
    return lines


def name_of(text: str) -> str:
    """Return text as a name of small letters, digits and `-`, which begins with a letter."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:LONGEST_NAME].strip("-")
    return name if name[:1].isalpha() else f"n-{name}".rstrip("-")


def _free_name(name: str, taken: list[str]) -> str:
    """Return a name that no other group has, nor the first node."""
    taken = ["head", *taken]
    return name if name not in taken else f"{name}-{len(taken)}"


def parse_per_node(words: list[str]) -> dict[str, int]:
    """Return what `TYPE=UNITS` words say."""
    found = {}
    for word in words:
        type_, _, count = word.rpartition("=")
        if not type_ or not count.isdecimal() or int(count) < 1:
            raise SpecError(f"`{word}` does not say how many", key="--per-node", hint="write TYPE=UNITS, e.g. v100=8")
        found[type_] = int(count)
    return found


def train_words(folder: str, out: str, *, on: str) -> list[str]:
    """Return the words that train a plan's run over a cluster."""
    return ["dovetail", "train", f"{folder}{RUN}", "--plan", f"{folder}{PLAN}", "--on", on, "--out", out]


def train_line(out: str, *, on: str) -> str:
    """Return them for a shell in the files' folder, `on` as the shell has it; run again, it goes on with the run."""
    line = f"dovetail train {RUN} --plan {PLAN} --on {on}"
    return f"{line} $(test -e {out}/blueprint.json && echo --resume {out} || echo --out {out})"
