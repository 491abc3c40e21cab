"""Sites without sockets and clocks: plain dictionaries for tables, and one `Aggregation` that all reach directly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from dovetail.runtime.sites.aggregator import Aggregation, BroughtRound
from dovetail.runtime.sites.changes import Rule
from dovetail.runtime.sites.exchange_log import Cuts
from dovetail.runtime.sites.figures import ExchangeFigures
from dovetail.runtime.sites.messages import Beat, Exchange, RoundHead
from dovetail.runtime.sites.outer_step import OuterStep, Terms
from dovetail.runtime.sites.rounds import Arrays, Shapes

NUM_ROWS, WIDTH, NUM_DENSE = 200, 3, 40
SHAPES = Shapes(NUM_DENSE, np.arange(5), [(NUM_ROWS, WIDTH)])
FAR_S = 1e9


class DictRows:
    """A table as a dictionary; a row that nobody has is made of its key."""

    def __init__(self) -> None:
        self.rows: dict[int, np.ndarray] = {}

    def first(self, key: int) -> np.ndarray:
        return np.full(WIDTH, key, dtype=np.float32)

    def read(self, keys: np.ndarray) -> np.ndarray:
        found = [self.rows.setdefault(int(key), self.first(int(key))) for key in keys]
        return np.array(found, dtype=np.float32).reshape(-1, WIDTH)

    def write(self, keys: np.ndarray, values: np.ndarray) -> None:
        for key, value in zip(keys, values, strict=True):
            self.rows[int(key)] = value.copy()


class PlainStore:
    """The parameters of a site."""

    def __init__(self) -> None:
        self.version = 0
        self.values = np.zeros(NUM_DENSE, dtype=np.float32)
        self.table = DictRows()

    def rows_of(self, table: int) -> DictRows:
        return self.table

    def corrected(self) -> None:
        pass


class Meeting:
    """The aggregation and its exchanges; a site that is cut off reaches neither."""

    def __init__(self, num_sites: int, *, every: int, wait_s: float = 10.0) -> None:
        self.aggregation = Aggregation(num_sites, wait_s=wait_s, now_s=0.0)
        self.every = every
        self.made: list[tuple[Exchange, Arrays]] = []
        self.cut_off: set[int] = set()

    def make(self, now_s: float) -> None:
        while rounds := self.aggregation.next_exchange(now_s):
            brought = [rounds[site] for site in sorted(rounds)]
            heads = tuple(msgspec.structs.replace(each.head, num_arrays=len(each.arrays)) for each in brought)
            exchange = Exchange(number=len(self.made) + 1, rounds=heads, so_far=())
            self.made.append((exchange, tuple(array for each in brought for array in each.arrays)))


class DirectLine:
    """A site's way to the meeting: what cannot go there now goes later."""

    def __init__(self, meeting: Meeting, site: int) -> None:
        self.meeting, self.site, self.every = meeting, site, meeting.every
        self.waiting: list[BroughtRound] = []
        self.heard_s = 0.0
        self.now_s = 0.0

    def offer(self, head: RoundHead, arrays: Arrays, now_s: float) -> None:
        self.waiting.append(BroughtRound(head, arrays))

    def go_on(self, now_s: float, beat: Beat) -> None:
        self.now_s = now_s
        if self.site in self.meeting.cut_off:
            return
        self.heard_s = now_s
        self.meeting.aggregation.heard(self.site, now_s)
        for brought in self.waiting:
            self.meeting.aggregation.offer(self.site, brought)
        self.waiting = []
        self.meeting.make(now_s)

    def exchange(self, number: int) -> tuple[Exchange, Arrays] | None:
        if self.site in self.meeting.cut_off or number > len(self.meeting.made):
            return None
        return self.meeting.made[number - 1]

    def ask_again(self, number: int) -> None:
        raise AssertionError("exchanges have all arrays here")

    def applied(self, exchange: Exchange, arrays: Sequence[Arrays]) -> None:
        assert len(arrays) == len(exchange.rounds)
        assert all(arrays), "every round has its arrays, this site's own too"

    def known_before(self) -> int:
        return 0

    def over(self) -> int | None:
        return len(self.meeting.made) if self.meeting.aggregation.is_over(self.now_s, FAR_S) else None

    def silent_s(self, now_s: float) -> float:
        return now_s - self.heard_s


class Site:
    """One site: its parameters, its exchanges, and steps that somebody else decides on."""

    def __init__(self, meeting: Meeting, site: int, folder: Path, *, last_step: int, bits: int = 32, rate: float = 1.0,
                 momentum: float = 0.0, ahead: int = 1, rule: Rule | None = None) -> None:  # fmt: skip
        self.store = PlainStore()
        self.line = DirectLine(meeting, site)
        names = [f"site-{number}" for number in range(len(meeting.aggregation.applied))]
        terms = Terms(site=site, names=names, bits=bits, rate=rate, momentum=momentum, ahead=ahead, wait_s=10.0,
                      end_wait_s=FAR_S, last_step=last_step, samples_at=lambda step: 10 * step,
                      rule=rule or Rule(linear_rows=True, sums=False))  # fmt: skip
        self.words: list[str] = []
        own = folder / f"site-{site}"
        figures = ExchangeFigures(own, lambda _: None, lambda _: None)
        self.outer_step = OuterStep(terms, SHAPES, self.store, Cuts(own), self.line, figures, self.words.append)

    def step(self, keys: np.ndarray, rows: np.ndarray, dense: np.ndarray, now_s: float) -> None:
        """Change rows and dense parameters by so much."""
        self.outer_step.touch(0, keys)
        table = self.store.table
        table.write(keys, table.read(keys) + rows)
        self.store.values += dense
        self.store.version += 1
        self.outer_step.after_step(now_s)


def settle(sites: list[Site], now_s: float) -> None:
    """Have every site hear of everything that there is."""
    for _ in range(4):
        for site in sites:
            site.outer_step.go_on(now_s)
