"""What the policy wants of the jobs that are there: it is asked about all, or all but those that it fails on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.scheduler.pins import WithPins
from dovetail.scheduler.policy import Policy
from dovetail.scheduler.quotas import WithinQuotas
from dovetail.serve.outlook import JobHistory, Outlook, outlook
from dovetail.serve.progress import JobProgress
from dovetail.serve.settings import DaemonSettings
from dovetail.serve.store import JobRecord

MOST_TOLD = 200
"""Of how many jobs it is kept what the policy was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Who is to stop, and who is to have how many workers of which type; whoever is not named stays as it is."""

    stops: tuple[JobRecord, ...] = ()
    gives: tuple[tuple[JobRecord, str, int], ...] = ()
    """What makes room comes first."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The jobs that the policy could not be asked about, and what went wrong with each."""
    told: tuple[dict[str, Any], ...] = ()
    """What the policy was told of each job, in plain values: for those who want to know why."""


class PolicyAsker:
    """Asks a policy about jobs, within the quotas and the sizes that users hold jobs to."""

    def __init__(self, policy: Policy, settings: DaemonSettings) -> None:
        """Keep whom to ask."""
        self._policy, self._settings = policy, settings

    def __call__(
        self,
        jobs: Sequence[JobRecord],
        progress: Mapping[str, JobProgress],
        seen: JobHistory,
        now_s: float,
        *,
        taken: dict[str, int],
    ) -> Wishes:
        """Return what the policy wants; where it fails because of single jobs, what it wants of the others."""
        try:
            return self._ask(jobs, progress, seen, now_s, taken)
        except Exception:
            left_out = {}
            for job in jobs:
                try:
                    self._ask([job], progress, seen, now_s, held_by(other for other in jobs if other is not job))
                except Exception as problem:  # one job's numbers: the others are none the worse
                    left_out[job.id] = f"{type(problem).__name__}: {problem}"
            rest = [job for job in jobs if job.id not in left_out]
            if not rest or not left_out:
                raise
        more = held_by(job for job in jobs if job.id in left_out)
        found = self._ask(rest, progress, seen, now_s, {k: taken.get(k, 0) + more.get(k, 0) for k in {*taken, *more}})
        return Wishes(stops=found.stops, gives=found.gives, left_out=left_out, told=found.told)

    def _ask(
        self,
        jobs: Sequence[JobRecord],
        progress: Mapping[str, JobProgress],
        seen: JobHistory,
        now_s: float,
        taken: dict[str, int],
    ) -> Wishes:
        known = outlook(self._settings, jobs, progress, seen, now_s, taken=taken)
        users = [job.user for job in jobs]
        pins = {row: job.pinned for row, job in enumerate(jobs) if job.pinned is not None}
        policy = WithPins(WithinQuotas(self._policy, users=users, quotas=self._settings.quotas), pins)
        wanted = policy.decide(known.cluster.view(known.watching), now_s - min(job.submitted_s for job in jobs))
        stops, starts = known.cluster.changes(wanted)
        types = known.cluster.table.types
        gives = [(jobs[start.row], types[start.kind], start.workers) for start in starts]
        gives.sort(key=lambda give: give[2] - give[0].workers)
        told = tuple(told_of(known, row) for row in range(min(len(jobs), MOST_TOLD)))
        return Wishes(stops=tuple(jobs[row] for row in stops), gives=tuple(gives), told=told)


def told_of(known: Outlook, row: int) -> dict[str, Any]:
    """Return what a policy was told of a job: what it holds, the work it has left, and its speed on some sizes.

    Sizes are 1, 2, 4 and so on, its largest and the one that it has.
    """
    job, speed = known.jobs[row], known.watching.speed[row]
    speeds: dict[str, dict[str, float]] = {}
    for place, name in enumerate(known.cluster.table.types):
        usable = [size for size in range(1, speed.shape[1]) if speed[place, size] > 0]
        shown = [size for size in usable if size & (size - 1) == 0 or size in (job.workers, usable[-1])]
        if shown:
            speeds[name] = {str(size): float(f"{speed[place, size]:.4g}") for size in shown}
    held = 0.0 if job.type not in speeds or not job.workers else speeds[job.type].get(str(job.workers), 0.0)
    left = float(known.watching.left[row])
    return {
        "id": job.id,
        "type": job.type if job.workers else None,
        "workers": job.workers,
        "left": left,
        "left_error": float(known.watching.left_error[row]),
        "left_s": left / held if held else None,
        "speeds": speeds,
    }


def held_by(jobs: Iterable[JobRecord]) -> dict[str, int]:
    """Return the workers that jobs hold, by type."""
    held: dict[str, int] = {}
    for job in jobs:
        if job.type is not None:
            held[job.type] = held.get(job.type, 0) + job.held
    return held
