"""The outer step of DiLoCo at one server: rounds are cut, offered, and brought into the parameters.

A round is cut at a step that is known before: so many steps after the last one, or where the journal says that it was
cut before the run went back. While it is on its way training goes on; where the next cut comes before the exchange,
the server answers no worker (`is_held`) until it is here, for `wait_s` at most. Then the site goes on alone, and cuts
later.

No sockets: `line` brings what others say. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.sites.changes import (
    DenseProgress,
    Floats,
    Keys,
    RowProgress,
    Rule,
    SiteChange,
    SiteRows,
    combined_dense,
    combined_rows,
)
from dovetail.runtime.sites.exchange_log import Cuts, arrays_of
from dovetail.runtime.sites.figures import ExchangeFigures
from dovetail.runtime.sites.messages import Beat, Exchange, RoundHead
from dovetail.runtime.sites.rounds import Arrays, Shapes, decode, encode, num_bytes


class SiteParameters(Protocol):
    """The parameters of a server."""

    version: int
    """Steps that they have."""
    values: Floats
    """The dense ones."""

    def rows_of(self, table: int) -> SiteRows:
        """Return the rows of a table, as they are after the last step."""
        ...

    def corrected(self) -> None:
        """Hear that parameters have changed by something else than a step."""
        ...


class ExchangeLine(Protocol):
    """What joins this site to the others."""

    every: int
    """How many steps rounds are to have."""

    def offer(self, head: RoundHead, arrays: Arrays, now_s: float) -> None:
        """Have a round brought to where exchanges are made, as soon as can be."""
        ...

    def go_on(self, now_s: float, beat: Beat) -> None:
        """Hear and say what there is."""
        ...

    def exchange(self, number: int) -> tuple[Exchange, Arrays] | None:
        """Return an exchange, or None where it is not here yet."""
        ...

    def ask_again(self, number: int) -> None:
        """Drop an exchange that came without arrays which this site does not have any more."""
        ...

    def applied(self, exchange: Exchange, arrays: Sequence[Arrays]) -> None:
        """Hear that an exchange is in the parameters, with the arrays of each of its rounds."""
        ...

    def known_before(self) -> int:
        """Return the last own round that the others had before it was sent from here."""
        ...

    def over(self) -> int | None:
        """Return how many exchanges there are in all, once that is known."""
        ...

    def silent_s(self, now_s: float) -> float:
        """Return how long nothing was heard of the site that makes the exchanges."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a site holds itself to."""

    site: int
    names: Sequence[str]
    bits: int
    rate: float
    momentum: float
    ahead: int
    """Rounds that may be on their way while training goes on; 0: it waits for each."""
    wait_s: float
    end_wait_s: float
    last_step: int
    samples_at: Callable[[int], int]
    """How many samples the site has seen after so many steps."""
    rule: Rule


@dataclass(slots=True)
class OnItsWay:
    """A round that was cut, and is in no exchange here yet."""

    head: RoundHead
    arrays: Arrays
    part: SiteChange
    """As the others read it."""
    cut_s: float = 0.0


class OuterStep:
    """The state of the exchanges at one server."""

    def __init__(
        self,
        terms: Terms,
        shapes: Shapes,
        store: SiteParameters,
        cuts: Cuts,
        line: ExchangeLine,
        figures: ExchangeFigures,
        tell: Callable[[str], None],
    ) -> None:
        """Stand at the beginning: what the store has is what all sites have."""
        self._terms, self._shapes, self._store = terms, shapes, store
        self._cuts, self._line, self._figures, self._tell = cuts, line, figures, tell
        self._kept: dict[int, int] = {}
        """How many exchanges the checkpoint of a step has."""
        self._safe = 0
        self.stand()

    def stand(self) -> None:
        """Take what the store has for what all sites have; nothing is on its way."""
        self.rows = [RowProgress(width) for _, width in self._shapes.tables]
        self.dense = DenseProgress(self._store.values)
        self.on_their_way: list[OnItsWay] = []
        self.exchanges, self.next_round, self.last_cut = 0, 1, 0
        self.own_from = 1
        """Rounds from this one on were cut by this process, and not done again: their arrays are as they were sent."""
        self._later = 0
        """Where cuts before this step are put off."""
        self._held_s: float | None = None
        self._waived = False
        self.is_finished = False

    # -- steps ---------------------------------------------------------------------------------------------------------

    def touch(self, table: int, keys: Keys) -> None:
        """Hear that a step is about to change rows."""
        self.rows[table].touch(keys, self._store.rows_of(table))

    @property
    def next_cut(self) -> int:
        """Return at which step the next round is cut."""
        if (known := self._cuts.heads.get(self.next_round)) is not None:
            return known.step
        last = self._terms.last_step
        cut = max(self.last_cut + self._line.every, self._later)
        # Two rounds right after each other would be in each other's way when everybody waits for the last.
        return last if 2 * (last - cut) < self._line.every else cut

    def after_step(self, now_s: float) -> None:
        """Cut where it is time."""
        self._figures.step(now_s)
        if self._store.version >= self.next_cut and self.last_cut < self._store.version:
            if self._may_cut:
                self._cut(now_s)
            else:
                self._held_s = now_s

    @property
    def _may_cut(self) -> bool:
        """Say whether another round may be on its way: the last, and one that was cut before, in any case."""
        is_due = self.next_round in self._cuts.heads or self._store.version == self._terms.last_step
        return is_due or len(self.on_their_way) < max(1, self._terms.ahead)

    @property
    def is_held(self) -> bool:
        """Say whether workers have to wait."""
        return self._held_s is not None

    def _cut(self, now_s: float) -> None:
        """Cut a round and have it sent."""
        terms, step = self._terms, self._store.version
        dense = self.dense.rest(self._store.values)
        tables = [rows.rest(self._store.rows_of(number)) for number, rows in enumerate(self.rows)]
        again = self._cuts.heads.get(self.next_round)
        bits = terms.bits if again is None else again.bits
        seed = ((terms.site + 1) << 40) + self.next_round
        arrays = encode(dense, tables, self._shapes, bits=bits, seed=seed)
        head = again or RoundHead(
            site=terms.site,
            round=self.next_round,
            step=step,
            samples=terms.samples_at(step) - terms.samples_at(self.last_cut),
            bits=bits,
            last=step == terms.last_step,
        )
        if again is not None:
            self.own_from = max(self.own_from, self.next_round + 1)
        part = decode(head, arrays, self._shapes, who=terms.names[terms.site])
        self.dense.cut(part.dense)
        for rows, deltas in zip(self.rows, part.tables, strict=True):
            rows.cut(deltas)
        self._cuts.write(head)
        self.on_their_way.append(OnItsWay(head, arrays, part, now_s))
        self._line.offer(head, arrays, now_s)
        self.next_round, self.last_cut = self.next_round + 1, step
        self._figures.cut(head, num_bytes(arrays))
        self._held_s = now_s if terms.ahead == 0 and not head.last else None
        self._waived = False

    # -- exchanges -----------------------------------------------------------------------------------------------------

    def go_on(self, now_s: float) -> bool:
        """Do what can be done; True where workers that waited need not wait any more."""
        was_held = self.is_held
        self._line.go_on(now_s, self._beat())
        while (found := self._line.exchange(self.exchanges + 1)) is not None and self._apply(*found, now_s):
            pass
        if self._held_s is not None:
            self._see_to_waiting(now_s)
        if not self.is_finished and self.last_cut == self._terms.last_step:
            self._see_to_end(now_s)
        return was_held and not self.is_held

    def _beat(self) -> Beat:
        self.own_from = max(self.own_from, self._line.known_before() + 1)
        return Beat(
            exchanges=self.exchanges,
            kept=self._safe,
            has_own=self.own_from,
            step_s=self._figures.step_s,
            done=self.is_finished,
        )

    def _see_to_waiting(self, now_s: float) -> None:
        """Go on where what was waited for is here, or was waited for long enough."""
        since_s = now_s if self._held_s is None else self._held_s
        is_cut = self.last_cut == self._store.version
        waited = now_s - since_s
        if is_cut and not self.on_their_way:
            self._held_s = None
            self._figures.waited(waited)
        elif not is_cut and self._may_cut:
            self._figures.waited(waited)
            self._cut(now_s)
        elif waited >= self._terms.wait_s or self._line.silent_s(now_s) >= self._terms.wait_s:
            if not self._waived:
                self._tell(f"no exchange with other sites for {waited:.0f} s: this site goes on alone")
            self._held_s, self._waived = None, True
            self._figures.waited(waited)
            if not is_cut:
                self._later = self._store.version + self._line.every

    def _see_to_end(self, now_s: float) -> None:
        """Be done once every exchange is in, or nobody is there to make one."""
        over = self._line.over()
        if over is not None and self.exchanges >= over and not self.on_their_way:
            self.dense.settle(self._store.values)
            self._store.corrected()
            self._tell(f"all {over} exchanges are in: {self._figures.in_all()}")
            self.is_finished = True
            self._line.go_on(now_s, self._beat())  # now, for the others wait for it, and this process may end soon
        elif self._line.silent_s(now_s) >= self._terms.end_wait_s:
            self._tell(
                f"{self._terms.names[0]} has been silent for {self._terms.end_wait_s:.0f} s: this site ends without "
                "the last exchange, and its parameters are not those of the others"
            )
            self.is_finished = True

    def _apply(self, exchange: Exchange, arrays: Arrays, now_s: float) -> bool:
        """Bring an exchange into the parameters; False where a round of this site in it is yet to be cut again."""
        own = next((head for head in exchange.rounds if head.site == self._terms.site), None)
        if own is not None and own.round >= self.next_round:
            self._cuts.write(own)
            if own.step <= self._store.version:
                raise TrainingError(
                    f"exchange {exchange.number} has a round of this site up to step {own.step}, which it is past",
                    hint="its journal of rounds is lost: start again from a checkpoint of another site",
                )
            return False
        if own is not None and not own.num_arrays and own.round < self.own_from:
            self._line.ask_again(exchange.number)  # ours was done again, and is not the one that counts
            return False
        mine = None
        if own is not None:
            mine = self.on_their_way.pop(0)
            if mine.head.round != own.round:
                raise TrainingError(
                    f"exchange {exchange.number} has round {own.round} of this site, expected {mine.head.round}",
                    hint="a bug: report it",
                )
        parts, all_arrays = [], []
        for head, each in zip(exchange.rounds, arrays_of(exchange, arrays), strict=True):
            known = mine is not None and head.site == self._terms.site and not each
            parts.append(mine.part if known and mine is not None else self._read(head, each))
            all_arrays.append(mine.arrays if known and mine is not None else each)
        rule = self._terms.rule
        for table, rows in enumerate(self.rows):
            change = combined_rows(parts, table, rule)
            rows.agree(change, None if mine is None else mine.part.tables[table], self._store.rows_of(table))
        own_dense = None if mine is None else mine.part.dense
        outer = {"rate": self._terms.rate, "momentum": self._terms.momentum}
        self.dense.agree(combined_dense(parts, rule), own_dense, self._store.values, **outer)
        self.exchanges = exchange.number
        self._line.applied(exchange, all_arrays)
        self._store.corrected()
        took_s = None if mine is None else now_s - mine.cut_s
        sites = [self._terms.names[head.site] for head in exchange.rounds]
        self._figures.applied(exchange, own, sites, num_bytes(arrays), took_s, self._line.every)
        return True

    def _read(self, head: RoundHead, arrays: Arrays) -> SiteChange:
        return decode(head, arrays, self._shapes, who=self._terms.names[head.site])

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def saved(self) -> None:
        """Note what the checkpoint that is made now has."""
        self._kept[self._store.version] = self.exchanges

    def is_kept(self, step: int) -> None:
        """Hear that the checkpoint of a step is whole: the exchanges in it are not needed here again."""
        if step in self._kept:
            self._safe = self._kept[step]
            self._kept = {each: count for each, count in self._kept.items() if each > step}

    def loaded(self, exchanges: int, *, is_finished: bool = False) -> None:
        """Note what the checkpoint has that the run goes on from, which may be all there is."""
        self.is_finished = is_finished and self._store.version >= self._terms.last_step
        self._safe = self.exchanges = exchanges
        self.own_from = max(self._cuts.heads, default=0) + 1
        for each in self.on_their_way:
            self._line.offer(each.head, each.arrays, 0.0)
