"""Who is missing or hangs, whom a run waits for in vain, and the watchdog over a run in which nothing moves."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.runtime.coordinator.membership import Member, Roster, Server, Worker

WAITS_S = 180.0
"""How long a run may be without the servers or workers it needs."""


class FailureDetector:
    """Looks at everyone, now and then."""

    def __init__(self, roster: Roster, patience_s: float, now_s: float) -> None:
        self._roster, self._patience_s = roster, patience_s
        self._worked_s = now_s
        self.lost: dict[str, int] = {}
        """Processes, by name and id, that are not heard of any more or hang: to be ended and started again."""

    def find_missing(self, now_s: float) -> list[tuple[Member, str]]:
        """Return those to go on without, and why."""
        found = []
        for member in self._roster.everyone:
            silent_s = now_s - member.heard_s
            loads = isinstance(member, Server) and not member.is_ready and silent_s < WAITS_S
            if member.is_lost(now_s) and not loads:
                found.append((member, f"silent for {silent_s:.1f} s"))
            elif isinstance(member, Worker) and member.is_stuck(self._patience_s):
                how = f"alive, but at the same thing for {member.stuck_s:.1f} s: it is ended and started again"
                found.append((member, how))
        self.lost |= {member.name: member.process_id for member, _ in found}
        return found

    def began(self, now_s: float) -> None:
        """Note that a generation begins or ends: whoever is needed has its time to come."""
        self._worked_s = now_s

    def waited_in_vain(self, now_s: float, *, is_working: bool) -> str | None:
        """Return for whom a run has waited too long, where that is so."""
        if is_working and self._roster.workers:
            self._worked_s = now_s
        if now_s - self._worked_s <= WAITS_S:
            return None
        nobody = "any worker" if not self._roster.workers else "the servers"
        return ", ".join(self._roster.missing_servers) or nobody


LEAST_S = 60.0
"""How long nothing must have moved at the least: longer than the first step waits for workers."""
PATIENCES = 6.0
"""How many times the run's patience that is."""
BUSY_S = 1.0
"""A worker that has been at the same thing for longer computes; it is no standstill."""


class Watchdog:
    """Tells a standstill by its length, which doubles each time: a run that is only slow must come to its end."""

    def __init__(self, patience_s: float) -> None:
        self._first_s = max(LEAST_S, PATIENCES * patience_s)
        self._limit_s = self._first_s
        self._moved_s = 0.0

    def moved(self, now_s: float) -> None:
        """Note that something came of the work."""
        self._moved_s = now_s
        self._limit_s = self._first_s

    def is_one(self, workers: Iterable[Worker], now_s: float) -> bool:
        """Say whether nothing has moved for too long; where it has not, the next may take twice as long."""
        if now_s - self._moved_s <= self._limit_s or any(worker.stuck_s > BUSY_S for worker in workers):
            return False
        self._limit_s *= 2
        self._moved_s = now_s
        return True
