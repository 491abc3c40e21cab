"""The engine: from event to event, deciding at arrivals, completions, failures and rounds.

Everything that happens at one instant happens before the one decision that follows it: completions first, then nodes
that come back or go down, then arrivals. Nothing depends on the real clock, which is only read (where one is handed in)
to say what decisions cost.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from dovetail.errors import DovetailError
from dovetail.scheduler.cluster import Cluster
from dovetail.scheduler.job_table import job_table
from dovetail.scheduler.placement import placements
from dovetail.scheduler.policy import Policy
from dovetail.simulator.crossings import SiteWays, with_links
from dovetail.simulator.knowledge import NOISE, KnowledgeName, teller
from dovetail.simulator.metrics import JobOutcome, Outcome, Trial
from dovetail.simulator.progress import VirtualJobs
from dovetail.spec.workload import Workload

Clock = Callable[[], float]
NodeEvent = tuple[float, int, Literal["down", "up"], int, list[int] | int, float]


def simulate(
    workload: Workload,
    policy: Policy,
    *,
    name: str,
    knowledge: KnowledgeName = "oracle",
    seed: int = 0,
    noise: float = NOISE,
    clock: Clock | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Trial:
    """Run a workload to its end under a policy and return what happened.

    `seed` draws the relative `noise` of measured speeds where knowledge is estimated; `on_progress` is told jobs done
    and jobs in all; `clock` is read around decisions.
    """
    run = _Run(workload, policy, knowledge=knowledge, seed=seed, noise=noise, clock=clock or _no_clock)
    while run.unfinished:
        run.step()
        if on_progress is not None:
            on_progress(run.num_done, len(run.table.jobs))
    return Trial(
        outcome=_outcome(name, workload, run.progress),
        changes=tuple(run.progress.changes),
        decisions=run.decisions,
        decision_s_mean=run.decision_s / max(run.decisions, 1),
        decision_s_worst=run.decision_s_worst,
    )


class _Run:
    """One simulation on its way."""

    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        *,
        knowledge: KnowledgeName,
        seed: int,
        noise: float,
        clock: Clock,
    ) -> None:
        """Set up at the first submission."""
        self.table = job_table(workload)
        self.policy = policy
        self.clock = clock
        ways = SiteWays(workload.sites, workload.site_links) if workload.site_links else None
        nodes_matter = bool(workload.failures) or bool((self.table.spread_speed < 1).any()) or ways is not None
        self.cluster = Cluster(self.table, placements(workload) if nodes_matter else None)
        self.progress = VirtualJobs(self.cluster, workload.sites, ways)
        known = self.table if ways is None else with_links(self.table, workload, ways)
        self.teller = teller(knowledge, self.progress, seed=seed, noise=noise, table=known)
        self.round_s = workload.round_s
        self.now_s = float(self.table.submit_s[0])
        self.next_round_s = self.now_s + self.round_s if self.round_s else math.inf
        self.next_arrival = 0
        self.num_done = 0
        self.decisions = 0
        self.decision_s = 0.0
        self.decision_s_worst = 0.0
        self.node_events: list[NodeEvent] = []
        for number, failure in enumerate(workload.failures):
            kind = self.table.types.index(failure.type)
            heapq.heappush(self.node_events, (failure.t_s, number, "down", kind, failure.nodes, failure.down_s))

    @property
    def unfinished(self) -> bool:
        """Whether there is a job that is not done."""
        return self.num_done < len(self.table.jobs)

    def step(self) -> None:
        """Go to the next instant at which anything happens, let it happen, and decide."""
        self.now_s = self._next_instant_s()
        self.progress.advance(self.now_s)
        done = self.progress.finish_due(self.now_s)
        self.num_done += len(done)
        self._change_nodes()
        arrived = self._arrivals()
        if len(self.cluster.active) == 0:
            return
        self.teller.refresh(self.progress, arrived, done, self.now_s)
        view = self.cluster.view(self.teller.known)
        started_s = self.clock()
        wanted = self.policy.decide(view, self.now_s)
        took_s = self.clock() - started_s
        self.decisions += 1
        self.decision_s += took_s
        self.decision_s_worst = max(self.decision_s_worst, took_s)
        self.progress.apply(wanted, self.now_s)

    def _next_instant_s(self) -> float:
        """Return when something happens next; rounds pass unseen while nobody is there."""
        count = len(self.table.jobs)
        arrival_s = self.table.submit_s[self.next_arrival] if self.next_arrival < count else math.inf
        node_s = self.node_events[0][0] if self.node_events else math.inf
        instant_s = min(float(arrival_s), self.progress.next_end_s(), node_s)
        if self.round_s and len(self.cluster.active):
            while self.next_round_s <= self.now_s:
                self.next_round_s += self.round_s
            instant_s = min(instant_s, self.next_round_s)
        elif self.round_s and instant_s < math.inf:
            first_s = float(self.table.submit_s[0])
            self.next_round_s = first_s + self.round_s * math.ceil((instant_s - first_s) / self.round_s)
        if instant_s == math.inf:
            waiting = len(self.cluster.active)
            raise DovetailError(
                f"nothing runs, nothing will arrive, and {waiting} jobs wait for ever",
                hint="the policy starts none of them: choose another, or give `round_s` so that it is asked again",
            )
        return instant_s

    def _arrivals(self) -> list[int]:
        """Let the jobs arrive that are submitted now."""
        arrived = []
        while self.next_arrival < len(self.table.jobs) and self.table.submit_s[self.next_arrival] <= self.now_s:
            self.cluster.arrive(self.next_arrival)
            arrived.append(self.next_arrival)
            self.next_arrival += 1
        return arrived

    def _change_nodes(self) -> None:
        """Take nodes down and bring them up that are due."""
        placed = self.cluster.placed
        while placed is not None and self.node_events and self.node_events[0][0] <= self.now_s:
            t_s, number, what, kind, nodes, down_s = heapq.heappop(self.node_events)
            if what == "down" and isinstance(nodes, int):
                down, hit = placed[kind].take_down(nodes)
                self.progress.stop(hit, self.now_s)
                heapq.heappush(self.node_events, (t_s + down_s, number, "up", kind, down, 0.0))
            elif isinstance(nodes, list):
                placed[kind].bring_up(nodes)
            self.cluster.capacity[kind] = placed[kind].workers_up


def _outcome(name: str, workload: Workload, progress: VirtualJobs) -> Outcome:
    """Return the figures of a finished simulation."""
    cluster, table = progress.cluster, progress.cluster.table
    times_s = progress.finish_s - table.submit_s
    makespan_s = float(progress.finish_s.max() - table.submit_s.min())
    by_id = {
        job.id: JobOutcome(
            id=job.id,
            start_s=float(progress.first_start_s[row]),
            finish_s=float(progress.finish_s[row]),
            restarts=int(cluster.starts[row]) - 1,
            egress_cost=float(progress.egress_usd[row]) if workload.site_links else None,
        )
        for row, job in enumerate(table.jobs)
    }
    p50_s, p99_s = np.percentile(times_s, [50, 99])
    return Outcome(
        policy=name,
        mean_jct_s=float(times_s.mean()),
        p50_jct_s=float(p50_s),
        p99_jct_s=float(p99_s),
        makespan_s=makespan_s,
        restarts=int(cluster.starts.sum() - len(table.jobs)),
        utilization=float(cluster.attained.sum() / (table.capacity.sum() * makespan_s)) if makespan_s else 1.0,
        jobs=tuple(by_id[job.id] for job in workload.jobs),
        egress_cost=float(progress.egress_usd.sum()) if workload.site_links else None,
    )


def _no_clock() -> float:
    """Return no time at all."""
    return 0.0
