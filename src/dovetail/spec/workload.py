"""A workload: the nodes of a cluster and the jobs that share it, as a file describes them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dovetail.errors import SpecError, did_you_mean
from dovetail.spec.checks import check_name, check_number, check_whole_number
from dovetail.spec.files import read_struct
from dovetail.spec.job import Job
from dovetail.spec.link import SiteLink, check_site_links, link_between

DEFAULT_RESTART_S = 10.0
"""What a start takes where neither the workload nor the job says."""


class NodeGroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`count` equal nodes, each with `workers` workers of one type."""

    type: Annotated[str, Meta(description='the type of the workers, e.g. "v100"')]
    workers: Annotated[int, Meta(description="how many workers one node has, e.g. 4")]
    count: Annotated[int, Meta(description="how many such nodes there are, e.g. 16")] = 1
    site: Annotated[str | None, Meta(description='where the nodes stand, e.g. "eu-west"')] = None

    def __post_init__(self) -> None:
        """Refuse nodes without workers."""
        check_name(self, "type")
        if self.site is not None:
            check_name(self, "site")
        check_whole_number(self, "workers", at_least=1)
        check_whole_number(self, "count", at_least=1)


class Failure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that go down: their jobs stop where they are, keep what they have done, and may start elsewhere."""

    t_s: Annotated[float, Meta(description="when the nodes go down, in seconds")]
    type: Annotated[str, Meta(description="the type of the nodes")]
    nodes: Annotated[int, Meta(description="how many nodes go down: the last ones that are up")] = 1
    down_s: Annotated[float, Meta(description="how long they stay down, in seconds")] = 600.0

    def __post_init__(self) -> None:
        """Refuse a failure of nothing."""
        check_number(self, "t_s", at_least=0)
        check_number(self, "down_s", above=0)
        check_whole_number(self, "nodes", at_least=1)


class Workload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a simulation needs to know."""

    nodes: Annotated[
        tuple[NodeGroup, ...], Meta(description='a list such as [{"type": "v100", "workers": 4, "count": 16}]')
    ]
    jobs: Annotated[tuple[Job, ...], Meta(description="a list of jobs, each with id, submit_s, work and speed")]
    restart_s: Annotated[float, Meta(description="seconds that each start of a job takes, e.g. 10.0")] = (
        DEFAULT_RESTART_S
    )
    resize_s: Annotated[
        float | None,
        Meta(description="seconds that other workers of its type take a job that runs; absent = as a start"),
    ] = None
    round_s: Annotated[
        float | None, Meta(description="decide this often too, in seconds, e.g. 360; absent = at events only")
    ] = None
    failures: Annotated[tuple[Failure, ...], Meta(description="nodes that go down for a while")] = ()
    site_links: Annotated[
        tuple[SiteLink, ...], Meta(description="a link for each pair of sites at which nodes of one type stand")
    ] = ()

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        check_number(self, "restart_s", at_least=0)
        if self.resize_s is not None:
            check_number(self, "resize_s", at_least=0)
        if self.round_s is not None:
            check_number(self, "round_s", above=0)
        if not self.nodes:
            raise SpecError("is empty, expected at least one node", key="nodes", hint=_NODE_HINT)
        if not self.jobs:
            raise SpecError("is empty, expected at least one job", key="jobs", hint="add a job: id, work and speed")
        _check_ids([job.id for job in self.jobs])
        capacity = self.capacity
        for position, job in enumerate(self.jobs):
            _check_job(f"jobs[{position}]", job, capacity)
        _check_sites(self.nodes, self.site_links)
        for position, failure in enumerate(self.failures):
            if failure.type not in capacity:
                raise SpecError(
                    f'is "{failure.type}", which no node has',
                    key=f"failures[{position}].type",
                    hint=did_you_mean(failure.type, capacity),
                )

    @property
    def types(self) -> tuple[str, ...]:
        """The types of the nodes, in the order of the file."""
        return tuple(dict.fromkeys(group.type for group in self.nodes))

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that nodes stand at, in the order of the file."""
        return tuple(dict.fromkeys(group.site for group in self.nodes if group.site is not None))

    @property
    def capacity(self) -> dict[str, int]:
        """Workers of each type, all nodes up."""
        total = dict.fromkeys(self.types, 0)
        for group in self.nodes:
            total[group.type] += group.workers * group.count
        return total

    def restart_s_of(self, job: Job) -> float:
        """Return what each start of a job takes."""
        return self.restart_s if job.restart_s is None else job.restart_s

    def resize_s_of(self, job: Job) -> float:
        """Return what other workers of its type take a job that runs."""
        found = self.resize_s if job.resize_s is None else job.resize_s
        return self.restart_s_of(job) if found is None else found


_NODE_HINT = 'add nodes, e.g. {"type": "v100", "workers": 4, "count": 16}'


def read_workload(path: Path) -> Workload:
    """Return the workload in a JSON or TOML file."""
    return read_struct(path, Workload)


def write_workload(workload: Workload, path: Path) -> None:
    """Write a workload as JSON, one job a line; reading it back gives an equal workload."""
    plain = msgspec.to_builtins(workload)
    plain["nodes"] = [{key: value for key, value in node.items() if value is not None} for node in plain["nodes"]]
    jobs = [_without_defaults(job) for job in plain.pop("jobs")]
    head = {key: value for key, value in plain.items() if value not in (None, [], ())}
    lines = ",\n ".join(msgspec.json.encode(job).decode() for job in jobs)
    text = msgspec.json.encode(head).decode()[:-1] + f',\n"jobs": [\n {lines}]}}\n'
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"cannot be written: {error.strerror}", hint="give a path in a folder that exists", file=str(path)
        ) from None


def _without_defaults(job: dict[str, object]) -> dict[str, object]:
    """Return a job's keys without those that say nothing."""
    silent: tuple[tuple[str, object], ...] = (("weight", 1.0), ("efficiency", {}))
    return {key: value for key, value in job.items() if value is not None and (key, value) not in silent}


def _check_sites(nodes: Sequence[NodeGroup], links: Sequence[SiteLink]) -> None:
    """Refuse nodes that stand nowhere while others stand at sites, and one type at two sites that nothing joins."""
    sites = list(dict.fromkeys(group.site for group in nodes if group.site is not None))
    check_site_links(links, sites, key="site_links")
    if not sites:
        return
    for position, group in enumerate(nodes):
        if group.site is None:
            raise SpecError(
                "is missing: other nodes stand at sites",
                key=f"nodes[{position}].site",
                hint=f'say where these stand, e.g. "site": "{sites[0]}"',
            )
    for name in dict.fromkeys(group.type for group in nodes):
        at = dict.fromkeys(group.site for group in nodes if group.type == name and group.site is not None)
        for one, other in itertools.combinations(at, 2):
            if link_between(links, one, other) is None:
                raise SpecError(
                    f"joins nothing: nodes of `{name}` stand at `{one}` and at `{other}`",
                    key="site_links",
                    hint=f'add {{"from": "{one}", "to": "{other}", "bytes_per_s": 12.5e6}}, or give the nodes of each '
                    "site a type of their own",
                )


def _check_ids(ids: Sequence[str]) -> None:
    """Refuse two jobs of one id."""
    first_seen: dict[str, int] = {}
    for position, job_id in enumerate(ids):
        if job_id in first_seen:
            raise SpecError(
                f'is "{job_id}", the id of jobs[{first_seen[job_id]}] too',
                key=f"jobs[{position}].id",
                hint="give each job its own id: results and events refer to it",
            )
        first_seen[job_id] = position


def _check_job(key: str, job: Job, capacity: dict[str, int]) -> None:
    """Refuse a job that names unknown types or fits on none."""
    tables = [("speed", job.speed)]
    tables += [(f"efficiency.{size}.speed", batch.speed) for size, batch in job.efficiency.items()]
    for table_key, table in tables:
        for type_name in table:
            if type_name not in capacity:
                raise SpecError(
                    f"names a type that no node has (job `{job.id}`)",
                    key=f"{key}.{table_key}.{type_name}",
                    hint=did_you_mean(type_name, capacity),
                )
    spans = {type_name: job.workers_on(type_name) for type_name in job.speed}
    if not any(spans.values()):
        raise SpecError(
            f"has no worker count within min_workers = {job.min_workers}"
            + (f" and max_workers = {job.max_workers}" if job.max_workers is not None else "")
            + f" (job `{job.id}`)",
            key=f"{key}.speed",
            hint="give the speed of at least one worker count that the job may use",
        )
    if not any(span and span[0] <= capacity[type_name] for type_name, span in spans.items()):
        needs = ", ".join(f"{span[0]} of {capacity[name]} `{name}`" for name, span in spans.items() if span)
        raise SpecError(
            f"lets job `{job.id}` run nowhere: it needs {needs}",
            key=f"{key}.speed",
            hint="add nodes of a type it can use, or lower its min_workers",
        )
