"""Which rounds of which sites make an exchange: decided in one place, at the first site, so that all do the same.

An exchange takes the next round of every site that has one here. It is made once every site that is heard of has one;
a site that has been silent for `wait_s` is not waited for, and takes part again when it is back. Each round counts
once, whoever sends it again.

Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar


class Round(Protocol):
    """A site's round, as far as it matters here."""

    @property
    def round(self) -> int:
        """Its number, from 1."""
        ...

    @property
    def last(self) -> bool:
        """Whether the site is done with it."""
        ...


R = TypeVar("R", bound=Round)


class Hub(Generic[R]):
    """What is here of each site, and what is in exchanges already."""

    def __init__(
        self, num_sites: int, *, wait_s: float, now_s: float, applied: Mapping[int, int] | None = None,
        finished: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Begin after exchanges that hold the rounds `applied` of each site; those `finished` bring no more."""
        self._wait_s = wait_s
        self.applied = dict.fromkeys(range(num_sites), 0) | dict(applied or {})
        self._finished = set(finished)
        self._here: dict[int, dict[int, R]] = {site: {} for site in range(num_sites)}
        self._heard_s = dict.fromkeys(range(num_sites), now_s)

    def heard(self, site: int, now_s: float) -> None:
        """Note that a site lives."""
        self._heard_s[site] = now_s

    def silent_s(self, site: int, now_s: float) -> float:
        """Return how long a site has not been heard of."""
        return now_s - self._heard_s[site]

    def offer(self, site: int, brought: R) -> bool:
        """Take in a round; False where it is here already, or counts."""
        if brought.round <= self.applied[site] or brought.round in self._here[site]:
            return False
        self._here[site][brought.round] = brought
        return True

    def latest(self, site: int) -> int:
        """Return the last round of a site that need not be sent again, nor any before it."""
        latest = self.applied[site]
        while latest + 1 in self._here[site]:
            latest += 1
        return latest

    def last_rounds(self) -> list[tuple[int, R]]:
        """Return the last rounds of sites that are here and in no exchange yet."""
        return [(site, each) for site, rounds in self._here.items() for each in rounds.values() if each.last]

    def away(self, now_s: float) -> list[int]:
        """Return the sites that are not waited for, though they are not done."""
        return [site for site in self.unfinished if self.silent_s(site, now_s) >= self._wait_s]

    @property
    def unfinished(self) -> list[int]:
        """Return the sites that have not brought their last round."""
        return [site for site in self.applied if site not in self._finished]

    def next_exchange(self, now_s: float) -> dict[int, R]:
        """Return the rounds of the next exchange by site, which count from now on; none where it is too early."""
        ready = {site: rounds[number] for site, rounds in self._here.items()
                 if (number := self.applied[site] + 1) in rounds}  # fmt: skip
        away = set(self.away(now_s))
        if not ready or any(site not in ready and site not in away for site in self.unfinished):
            return {}
        for site, brought in ready.items():
            self.applied[site] = brought.round
            del self._here[site][brought.round]
            if brought.last:
                self._finished.add(site)
        return ready

    def is_over(self, now_s: float, end_wait_s: float) -> bool:
        """Say whether no site is expected to bring more: all are done, or have been silent for so long."""
        return all(self.silent_s(site, now_s) >= end_wait_s for site in self.unfinished)
