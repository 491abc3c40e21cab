"""Who is missing: members that have fallen silent, workers that hang, and whom a run waits for in vain."""

from __future__ import annotations

from dovetail.runtime.coordinator.members import Member, Server, Worker
from dovetail.runtime.coordinator.roster import Roster

WAITS_S = 180.0
"""How long a run may be without the servers or workers it needs."""


class Attendance:
    """Looks at everyone, now and then."""

    def __init__(self, roster: Roster, patience_s: float, now_s: float) -> None:
        """Start with nobody missing."""
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
