"""Jobs that stand at several sites: what the links between the sites leave each of them, and what each pays.

For a unit of work each of a job's sites sends each other one `site_bytes`, in the background of its computing. So a job
goes no faster than the links carry that, and pays each way by its price. Jobs share a link fairly: none gets more while
another that wants more has less (max-min). The two directions of a link do not slow each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dovetail.scheduler.job_table import JobTable
from dovetail.scheduler.placement import placements, spread
from dovetail.scheduler.view import FloatArray
from dovetail.spec.link import SiteLink, link_between
from dovetail.spec.workload import Workload

Way = tuple[int, int]
"""From the site of one number to the site of another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A job at several sites: the ways it sends over, what it sends over each for a unit of work, and its own speed."""

    ways: tuple[Way, ...]
    bytes_per_work: float
    speed: float

    @property
    def wants_bytes_per_s(self) -> float:
        """What it sends over each way at its own speed."""
        return self.speed * self.bytes_per_work


class SiteWays:
    """The links of a workload, by the numbers of their sites."""

    def __init__(self, sites: Sequence[str], links: Sequence[SiteLink]) -> None:
        """Look up the link of every way there is."""
        found = {
            (one, other): link_between(links, sites[one], sites[other])
            for one, other in itertools.permutations(range(len(sites)), 2)
        }
        self._links = {way: link for way, link in found.items() if link is not None}

    def between(self, sites: Sequence[int]) -> tuple[Way, ...]:
        """Return the ways that a job at these sites sends over: from each to each other."""
        return tuple(itertools.permutations(sites, 2))

    def usd_per_byte(self, ways: Sequence[Way]) -> float:
        """Return what it costs to send a byte over each of the ways."""
        return sum(self._links[way].price_per_byte for way in ways)

    def bytes_per_s(self, ways: Sequence[Way]) -> float:
        """Return what the slowest of the ways carries."""
        return min((self._links[way].bytes_per_s for way in ways), default=math.inf)

    def speeds(self, crossings: Mapping[int, Crossing]) -> dict[int, float]:
        """Return how fast each job goes: at its own speed, or at what a fair share of its links carries.

        Progressive filling: who wants least of what is left for each is settled first.
        """
        left = {way: self._links[way].bytes_per_s for crossing in crossings.values() for way in crossing.ways}
        open_jobs = dict(crossings)
        settled: dict[int, float] = {}
        while open_jobs:
            users = {way: sum(way in crossing.ways for crossing in open_jobs.values()) for way in left}
            offers = {
                job: min(crossing.wants_bytes_per_s, *(left[way] / users[way] for way in crossing.ways))
                for job, crossing in open_jobs.items()
            }
            job = min(offers, key=lambda job: (offers[job], job))
            crossing, given = open_jobs.pop(job), offers[job]
            has_all = given == crossing.wants_bytes_per_s
            settled[job] = crossing.speed if has_all else given / crossing.bytes_per_work
            for way in crossing.ways:
                left[way] -= given
        return settled


def with_links(table: JobTable, workload: Workload, ways: SiteWays) -> JobTable:
    """Return the table with the speeds that policies can count on: more workers than a site has go at a link's pace.

    The sites are those that the job would stand at in an empty cluster, with their links to itself.
    """
    sent_bytes = np.array([job.site_bytes or 0.0 for job in table.jobs])
    work_per_s = np.full(table.speed.shape, math.inf)
    for kind, placed in enumerate(placements(workload)):
        room = np.bincount(placed.site, weights=placed.size).astype(np.int64)
        for workers in range(1, min(table.speed.shape[2], int(room.sum()) + 1)):
            sites = sorted(site for site, _ in spread(room, workers))
            carried = ways.bytes_per_s(ways.between(sites))
            np.divide(carried, sent_bytes, out=work_per_s[:, kind, workers], where=sent_bytes > 0)

    speed: FloatArray = np.minimum(table.speed, work_per_s)
    batch_speed = tuple(np.minimum(each, work_per_s) for each in table.batch_speed)
    return replace(table, speed=speed, batch_speed=batch_speed)
