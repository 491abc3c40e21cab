"""The line of every site but the first: to that, where exchanges are made.

Two connections: rounds and exchanges go over one, signs of life over the other, so that they are not behind megabytes.
After a silence both are made anew: TCP would wait longer and longer before it tries again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from dovetail.runtime.sites.catch_up import CatchUpPeer, Nearby
from dovetail.runtime.sites.exchange_log import completed, whole
from dovetail.runtime.sites.messages import Beat, Early, Exchange, Heard, Offer, RoundHead
from dovetail.runtime.sites.rounds import Arrays, num_bytes
from dovetail.transport import Caller, PeerLost, Refused, WireError

BEAT_S = 0.5
ANEW_S = 5.0
SLOWEST_BYTES_PER_S = 100_000.0
"""Until it is measured: by this it is told when a round counts as lost on its way."""
AGAIN_S = 20.0


class OnTheWire:
    """A round that the first site is to have."""

    def __init__(self, head: RoundHead, arrays: Arrays) -> None:
        self.head, self.arrays = head, arrays
        self.sent_s: float | None = None
        self.is_late = False

    @property
    def patience_s(self) -> float:
        """Return how long it may take to get there."""
        return AGAIN_S + num_bytes(self.arrays) / SLOWEST_BYTES_PER_S


class SiteLine:
    """A line to the first site; `connect` makes a connection."""

    def __init__(
        self,
        connect: Callable[[str], Caller],
        *,
        every: int,
        now_s: float,
        tell: Callable[[str], None],
        site: int,
        giver: CatchUpPeer | None = None,
        nearby: Nearby | None = None,
    ) -> None:
        """Connect; the other side need not be there yet. What was missed may come from this disk, or from nearby."""
        self._site, self._giver, self._nearby = site, giver, nearby
        self._early: dict[tuple[int, int], Arrays] = {}
        """Last rounds of others that are in no exchange yet, by site and number."""
        self._lost = 0
        self._latency_s = math.inf
        self._asked: dict[int, float] = {}
        self._connect, self._tell = connect, tell
        self.every = every
        self._beats, self._bulk = connect("/beats"), connect("/bulk")
        self._rounds: dict[int, OnTheWire] = {}
        self._exchanges: dict[int, tuple[Exchange, Arrays]] = {}
        self._heard: Heard | None = None
        self._heard_s = self._made_s = now_s
        self._said: Beat | None = None
        self._said_s = now_s - BEAT_S
        self._is_bulk_known = False
        self._send_s = 0.0
        self._known_before = 0
        self._complaint = ""

    def offer(self, head: RoundHead, arrays: Arrays, now_s: float) -> None:
        """Have a round sent with the next look."""
        self._rounds[head.round] = OnTheWire(head, arrays)

    def exchange(self, number: int) -> tuple[Exchange, Arrays] | None:
        """Return an exchange; those before it are not needed any more."""
        self._exchanges = {each: found for each, found in self._exchanges.items() if each >= number}
        found = self._exchanges.get(number)
        if found is None and self._nearby is not None:
            found = self._nearby.found.get(number)
        return found if found is not None or self._giver is None else self._giver.find(number)

    def ask_again(self, number: int) -> None:
        """Drop an exchange as it came: another is on its way."""
        self._exchanges.pop(number, None)
        if self._nearby is not None:
            self._nearby.found.pop(number, None)

    def applied(self, exchange: Exchange, arrays: Sequence[Arrays]) -> None:
        """Keep an exchange for those who miss it."""
        if self._giver is not None:
            self._giver.keep(*whole(exchange, arrays))

    def known_before(self) -> int:
        """Return the last round that the first site had before it was sent from here, 0 where there is none."""
        return self._known_before

    def forget(self) -> None:
        """Have everything sent again: the site went back."""
        self._exchanges.clear()
        self._rounds.clear()
        if self._nearby is not None:
            self._nearby.found.clear()

    def over(self) -> int | None:
        """Return how many exchanges there are in all, once the first site says so."""
        return self._heard.exchanges if self._heard is not None and self._heard.over else None

    def silent_s(self, now_s: float) -> float:
        """Return how long nothing was heard."""
        return now_s - self._heard_s

    def go_on(self, now_s: float, beat: Beat) -> None:
        """Hear, and say what is due."""
        for line in (self._beats, self._bulk):
            self._listen(line, now_s)
        if self.silent_s(now_s) > ANEW_S and now_s - self._made_s > ANEW_S:
            self._make_anew(now_s)
        beat = msgspec.structs.replace(
            beat, send_s=self._send_s, exchanges=self._catch_up(now_s, beat), lost=self._lost
        )
        is_news = self._said is None or (beat.exchanges, beat.has_own, beat.done, beat.lost) != (
            self._said.exchanges,
            self._said.has_own,
            self._said.done,
            self._said.lost,
        )
        if is_news or now_s - self._said_s >= BEAT_S:
            self._said, self._said_s = beat, now_s
            with suppress(PeerLost):
                self._asked = {self._beats.ask(beat): now_s}
                if is_news or not self._is_bulk_known:
                    self._bulk.ask(msgspec.structs.replace(beat, bulk=True))
                    self._is_bulk_known = True
        self._send_rounds(now_s)

    def _catch_up(self, now_s: float, beat: Beat) -> int:
        """See to exchanges that this site has missed; return how many need not come from the first site."""
        here = beat.exchanges
        if self._giver is not None:
            self._giver.go_on()
            if self._heard is not None:
                self._giver.drop_before(self._heard.needed)
            here = self._giver.newest_after(here)
        is_silent = self.silent_s(now_s) > ANEW_S
        if self._nearby is None or (self._heard is None and not is_silent):
            return here
        first_has = None if is_silent or self._heard is None else self._heard.exchanges
        self._nearby.go_on(now_s, here, has_own=beat.has_own, first_has=first_has, first_s=self._latency_s)
        return max(here, self._nearby.pledged)

    def _send_rounds(self, now_s: float) -> None:
        """Send rounds that the first site lacks, once it is there."""
        if self._heard is None:
            return
        for number, each in sorted(self._rounds.items()):
            if number <= self._heard.latest:
                if each.sent_s is None and not each.is_late:
                    self._known_before = max(self._known_before, number)
                elif each.sent_s is not None and not each.is_late:
                    self._send_s = now_s - each.sent_s
                del self._rounds[number]
            elif each.sent_s is None or now_s - each.sent_s > each.patience_s:
                each.is_late = each.is_late or each.sent_s is not None
                with suppress(PeerLost):
                    self._bulk.ask(Offer(head=each.head), each.arrays)
                    each.sent_s = now_s

    def _listen(self, line: Caller, now_s: float) -> None:
        for _ in range(64):
            try:
                envelope = line.receive(0)
            except WireError as error:
                self._tell(f"the first site sent what makes no sense: {error}")
                continue
            if envelope is None:
                return
            self._heard_s = now_s
            message = envelope.message
            if isinstance(message, Heard):
                if line is self._beats and (asked_s := self._asked.pop(envelope.request, None)) is not None:
                    self._latency_s = min(self._latency_s, now_s - asked_s)
                if self._heard is not None and message.life != self._heard.life:
                    self._is_bulk_known = False
                    for each in self._rounds.values():
                        each.is_late, each.sent_s = each.sent_s is not None, None
                self._heard, self.every = message, message.every
            elif isinstance(message, Exchange):
                arrays = tuple(array.copy() for array in envelope.arrays)
                found = completed(message, arrays, site=self._site, early=self._early)
                if found is None:
                    self._lost += 1  # it is sent again, whole
                else:
                    self._exchanges[message.number] = found
            elif isinstance(message, Early):
                early = tuple(array.copy() for array in envelope.arrays)
                self._early[message.head.site, message.head.round] = early
            elif isinstance(message, Refused) and message.reason != self._complaint:
                self._complaint = message.reason
                self._tell(f"the first site refused a message of this one: {message.reason}")

    def _make_anew(self, now_s: float) -> None:
        """Connect again; what was on its way is sent again."""
        self._made_s = now_s
        self._hang_up()
        self._beats, self._bulk = self._connect("/beats"), self._connect("/bulk")
        self._is_bulk_known = False
        for each in self._rounds.values():
            each.is_late, each.sent_s = each.is_late or each.sent_s is not None, None

    def close(self) -> None:
        """Hang up."""
        self._hang_up()
        if self._giver is not None:
            self._giver.close()
        if self._nearby is not None:
            self._nearby.close()

    def _hang_up(self) -> None:
        self._beats.close()
        self._bulk.close()
