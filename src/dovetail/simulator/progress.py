"""Jobs in virtual time: what each has left, how fast it goes, and when it will be done."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from dovetail.scheduler.cluster import Cluster, JobStart
from dovetail.scheduler.view import Allocation
from dovetail.simulator.crossings import Crossing, SiteWays
from dovetail.simulator.metrics import Change


class VirtualJobs:
    """The work of a cluster's jobs.

    While a job runs, what it has left is `left_at_start - rate * (now - ready)`, so its end is known when it starts and
    does not depend on how often anybody looks. Where jobs share links between sites, a rate may change on the way: then
    the same holds from that moment on.
    """

    def __init__(self, cluster: Cluster, sites: Sequence[str] = (), ways: SiteWays | None = None) -> None:
        """Set up with nothing done; `ways` are the links between sites, where nodes stand at several."""
        table = cluster.table
        count = len(table.jobs)
        self.cluster = cluster
        self.left = table.work.copy()
        self.rate = np.zeros(count)
        self.ready_s = np.zeros(count)
        self.first_start_s = np.full(count, np.nan)
        self.finish_s = np.full(count, np.nan)
        self.egress_usd = np.zeros(count)
        self.changes: list[Change] = []
        self._sites = tuple(sites)
        self._ways = ways
        self._crossings: dict[int, Crossing] = {}
        self._usd_per_work = np.zeros(count)
        self._version = np.zeros(count, np.int64)
        self._left_at_start = table.work.copy()
        self._ends: list[tuple[float, int, int]] = []

    def next_end_s(self) -> float:
        """Return when the next running job will be done, or infinity."""
        while self._ends and not self._still_holds(self._ends[0]):
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else np.inf

    def _still_holds(self, end: tuple[float, int, int]) -> bool:
        """Say whether the rate that an end was worked out for is the one that the job still runs at."""
        _, version, row = end
        return bool(self.cluster.workers[row] > 0 and self._version[row] == version)

    def advance(self, now_s: float) -> None:
        """Bring what running jobs have left and have held up to date."""
        self.cluster.advance(now_s)
        rows = self.cluster.running
        worked_s = np.maximum(now_s - self.ready_s[rows], 0.0)
        self.left[rows] = np.maximum(self._left_at_start[rows] - self.rate[rows] * worked_s, 0.0)

    def finish_due(self, now_s: float) -> list[int]:
        """End the jobs that are done now, and return them."""
        done = []
        while self.next_end_s() <= now_s:
            _, _, row = heapq.heappop(self._ends)
            self._note_stop(row, now_s)
            self.cluster.finish(row, now_s)
            self.left[row] = 0.0
            self.finish_s[row] = now_s
            done.append(row)
        self._share_links(now_s)
        return done

    def stop(self, rows: list[int], now_s: float) -> None:
        """Take the workers from jobs that keep what they have done."""
        for row in rows:
            self._note_stop(row, now_s)
            self.cluster.let_go(row, now_s)
        self._share_links(now_s)

    def apply(self, wanted: Allocation, now_s: float) -> int:
        """Make an allocation hold from now on; return how many jobs it started."""
        stops, starts = self.cluster.changes(wanted)
        moved = [start.row for start in starts if self.cluster.workers[start.row] > 0]
        pays_s = [self._pays_s(start, now_s) for start in starts]
        self.stop([*stops, *moved], now_s)
        for start, start_pays_s in zip(starts, pays_s, strict=True):
            self._start(start, now_s, start_pays_s)
        self._share_links(now_s)
        return len(starts)

    def _pays_s(self, start: JobStart, now_s: float) -> float:
        """Return how long a job does nothing after a change.

        Other workers of its type cost it a resize. Where it has not yet got through its start, it has the rest of that
        before it as well: a resize makes nobody load faster. Starting anew is never the dearer way.
        """
        row, table = start.row, self.cluster.table
        restart_s = float(table.restart_s[row])
        if start.kind != self.cluster.type[row]:
            return restart_s
        rest_s = max(0.0, float(self.ready_s[row]) - now_s)
        return min(rest_s + float(table.resize_s[row]), max(restart_s, float(table.resize_s[row])))

    def _start(self, start: JobStart, now_s: float, pays_s: float) -> None:
        """Give a job workers; it pays for its start, or for the change of its size, first."""
        row, table = start.row, self.cluster.table
        tight = self.cluster.hold(start, now_s)
        source = table.speed if start.batch < 0 else table.batch_speed[start.batch]
        self.rate[row] = source[row, start.kind, start.workers] * (1.0 if tight else table.spread_speed[row])
        self.ready_s[row] = now_s + pays_s
        self._left_at_start[row] = self.left[row]
        if np.isnan(self.first_start_s[row]):
            self.first_start_s[row] = now_s
        self._expect_end(row)
        sites = self._cross(row, start)
        batch = table.batch_sizes[start.batch] if start.batch >= 0 else None
        self.changes.append(
            Change(
                t_s=float(now_s),
                job=table.jobs[row].id,
                type=table.types[start.kind],
                workers=start.workers,
                batch=batch,
                sites=sites,
            )
        )

    def _expect_end(self, row: int) -> None:
        """Work out when a job will be done at the rate it has."""
        self._version[row] += 1
        end_s = self.ready_s[row] + self._left_at_start[row] / self.rate[row]
        heapq.heappush(self._ends, (float(end_s), int(self._version[row]), row))

    def _cross(self, row: int, start: JobStart) -> tuple[str, ...] | None:
        """Note what a job that starts sends between sites; return those it stands at, where there are any."""
        if self._ways is None or self.cluster.placed is None:
            return None
        sites = self.cluster.placed[start.kind].sites_of(row)
        sent_bytes = self.cluster.table.jobs[row].site_bytes or 0.0
        if len(sites) > 1 and sent_bytes > 0:
            ways = self._ways.between(sites)
            self._crossings[row] = Crossing(ways=ways, bytes_per_work=sent_bytes, speed=float(self.rate[row]))
            self._usd_per_work[row] = sent_bytes * self._ways.usd_per_byte(ways)
        return tuple(self._sites[site] for site in sites)

    def _share_links(self, now_s: float) -> None:
        """Give every job at several sites the rate that the links between them leave it now."""
        if self._ways is None or not self._crossings:
            return
        for row, rate in self._ways.speeds(self._crossings).items():
            if rate != self.rate[row]:
                self._pay(row)
                self._left_at_start[row] = self.left[row]
                self.ready_s[row] = max(float(self.ready_s[row]), now_s)
                self.rate[row] = rate
                self._expect_end(row)

    def _pay(self, row: int) -> None:
        """Pay for the bytes of the work done since the rate was set."""
        self.egress_usd[row] += self._usd_per_work[row] * (self._left_at_start[row] - self.left[row])

    def _note_stop(self, row: int, now_s: float) -> None:
        """Write down that a job's workers are taken, and let it stand still."""
        table = self.cluster.table
        name = table.types[int(self.cluster.type[row])]
        self.changes.append(Change(t_s=float(now_s), job=table.jobs[row].id, type=name, workers=0))
        if self._crossings.pop(row, None) is not None:
            self._pay(row)
            self._usd_per_work[row] = 0.0
        self.rate[row] = 0.0
