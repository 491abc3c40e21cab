"""Who works on which samples: every position of an epoch is handed out, and counted once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dovetail.data.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Positions `first` up to but not including `last` of an order, for one holder."""

    number: int
    first: int
    last: int
    holder: str = ""


@dataclass(slots=True, kw_only=True)
class LeaseBook:
    """Hands out positions in turn; those of a holder that is gone, or gave some back, are handed out again first.

    `state` and `LeaseBook.restored` keep what is done, so that a run goes on at exactly the sample where it stopped.
    """

    num_positions: int | None
    """Of the order; None is no end."""
    next_position: int = 0
    _next_number: int = 0
    _held: dict[int, Lease] = field(default_factory=dict)
    _returned: deque[tuple[int, int]] = field(default_factory=deque)

    def take(self, count: int, *, holder: str = "") -> Lease | None:
        """Return a lease of up to `count` positions, or None where none are left (some may still be held)."""
        if count < 1:
            raise DataError(f"a lease of {count} samples was asked for", hint="ask for at least 1")
        if self._returned:
            first, last = self._returned.popleft()
            if last - first > count:
                self._returned.appendleft((first + count, last))
                last = first + count
        else:
            first, last = self.next_position, self.next_position + count
            if self.num_positions is not None:
                last = min(last, self.num_positions)
            self.next_position = max(first, last)
        if first >= last:
            return None
        lease = Lease(number=self._next_number, first=first, last=last, holder=holder)
        self._held[lease.number] = lease
        self._next_number += 1
        return lease

    def complete(self, lease: Lease) -> bool:
        """Count a lease as done; False where it was taken away before, so that its samples do not count twice."""
        return self._held.pop(lease.number, None) is not None

    def give_back(self, lease: Lease, *, done: int = 0) -> None:
        """Take back a lease of which the first `done` positions are finished."""
        if self._held.pop(lease.number, None) is not None and lease.first + done < lease.last:
            self._returned.append((lease.first + done, lease.last))

    def drop_holder(self, holder: str) -> int:
        """Take back all leases of a holder and return how many there were."""
        gone = [lease for lease in self._held.values() if lease.holder == holder]
        for lease in gone:
            self.give_back(lease)
        return len(gone)

    @property
    def is_finished(self) -> bool:
        """Whether every position is done."""
        if self.num_positions is None or self._held or self._returned:
            return False
        return self.next_position >= self.num_positions

    def state(self) -> dict[str, object]:
        """Return what is not done: where new positions begin, and the gaps before that. Leases held now are gaps."""
        gaps = [*self._returned, *((lease.first, lease.last) for lease in self._held.values())]
        return {"next_position": self.next_position, "gaps": sorted(gaps), "num_positions": self.num_positions}

    @classmethod
    def restored(cls, state: dict[str, object]) -> LeaseBook:
        """Return the book that `state` described."""
        book = cls(num_positions=state["num_positions"], next_position=state["next_position"])  # type: ignore[arg-type]
        book._returned.extend((first, last) for first, last in state["gaps"])  # type: ignore[attr-defined]
        return book
