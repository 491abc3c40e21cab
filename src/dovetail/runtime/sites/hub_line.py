"""The line of the first site: it makes the exchanges, keeps them, and sends them to the others."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from dovetail.runtime.sites.hub import Hub
from dovetail.runtime.sites.kept import ExchangeLog, left_for
from dovetail.runtime.sites.messages import Beat, Early, Exchange, Heard, Offer, RoundHead
from dovetail.runtime.sites.pace import steps_of_a_round
from dovetail.runtime.sites.rounds import Arrays, Shapes, decode
from dovetail.transport import Letter, Listener, WireError

AT_ONCE = 2
"""Exchanges that may be on their way to a site."""
AGAIN_S = 60.0
"""When an exchange is sent again that a living site does not have: a connection broke."""


@dataclass(frozen=True, slots=True)
class Brought:
    """A round that a site brought."""

    head: RoundHead
    arrays: Arrays

    @property
    def round(self) -> int:
        """Its number."""
        return self.head.round

    @property
    def last(self) -> bool:
        """Whether it is the site's last."""
        return self.head.last


@dataclass(slots=True)
class Other:
    """Another site, as far as it was heard of."""

    beat: Beat | None = None
    bulk: bytes = b""
    """Where exchanges for it go."""
    sent: int = 0
    sent_s: dict[int, float] = field(default_factory=dict)
    early: set[int] = field(default_factory=set)
    """Sites whose last rounds were sent to it before they were in an exchange."""
    receive_s: float = 0.0
    is_away: bool = False


class HubLine:
    """Exchanges are made here."""

    def __init__(
        self, names: Sequence[str], last_steps: Sequence[int], listener: Listener, log: ExchangeLog, shapes: Shapes,
        *, every: int | None, first_every: int, wait_s: float, end_wait_s: float, now_s: float,
        tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Go on after the exchanges in the log; without `every` the steps of a round are chosen."""
        self._names, self._listener, self._log, self._shapes = names, listener, log, shapes
        self._wait_s, self._end_wait_s, self._tell = wait_s, end_wait_s, tell
        self.every, self._is_chosen = every or first_every, every is None
        self._life = secrets.token_hex(8)
        self._so_far = log.read(log.count)[0].so_far if log.count else ((0, 0),) * len(names)
        self._hub: Hub[Brought] = Hub(
            len(names), wait_s=wait_s, now_s=now_s, applied={site: each[0] for site, each in enumerate(self._so_far)},
            finished=[site for site, (_, step) in enumerate(self._so_far) if step >= last_steps[site]],
        )  # fmt: skip
        self._others = {site: Other() for site in range(1, len(names))}
        self._beat: Beat | None = None
        self._now_s = now_s
        self._needed = 0
        self._made: dict[int, tuple[Exchange, Arrays]] = {}

    # -- as a line -----------------------------------------------------------------------------------------------------

    def offer(self, head: RoundHead, arrays: Arrays, now_s: float) -> None:
        """Have a round of this site's own in the next exchange."""
        self._hub.offer(0, Brought(head, arrays))

    def exchange(self, number: int) -> tuple[Exchange, Arrays] | None:
        """Return an exchange."""
        return None if number > self._log.count or self._beat is None else self._for(0, number, self._beat.has_own)

    def ask_again(self, number: int) -> None:
        """Do nothing: every look at an exchange is a new one."""

    def applied(self, exchange: Exchange, arrays: Sequence[Arrays]) -> None:
        """Do nothing: it is in the log since it was made."""

    def known_before(self) -> int:
        """Return 0: whoever makes the exchanges has its own journal."""
        return 0

    def silent_s(self, now_s: float) -> float:
        """Return 0: this is the site that makes the exchanges."""
        return 0.0

    def over(self) -> int | None:
        """Return how many exchanges there are once no more can come, and everyone has them who is there."""
        if not self._hub.is_over(self._now_s, self._end_wait_s):
            return None
        for site, other in self._others.items():
            is_done = other.beat is not None and other.beat.done
            if not is_done and self._hub.silent_s(site, self._now_s) < self._wait_s:
                return None
        return self._log.count

    def go_on(self, now_s: float, beat: Beat) -> None:
        """Hear the others, make exchanges, send them."""
        self._now_s, self._beat = now_s, beat
        self._hub.heard(0, now_s)
        for _ in range(64):
            if (letter := self._listener.receive(0)) is None:
                break
            self._hear(letter, now_s)
        while rounds := self._hub.next_exchange(now_s):
            self._make(rounds)
        for site, other in self._others.items():
            self._send(site, other, now_s)
        self._tell_of_away(now_s)
        kept = [beat.kept, *(0 if other.beat is None else other.beat.kept for other in self._others.values())]
        self._needed = min(kept) + 1
        self._log.drop_before(self._needed)

    # -- the others ----------------------------------------------------------------------------------------------------

    def _hear(self, letter: Letter, now_s: float) -> None:
        """Take in what a site says; what makes no sense is refused."""
        if letter.owner not in self._names[1:]:
            self._listener.refuse(letter, f"{letter.owner} is no other site of this run")
            return
        site, message = self._names.index(letter.owner), letter.message
        other = self._others[site]
        self._hub.heard(site, now_s)
        if isinstance(message, Offer):
            try:
                if message.head.site != site:
                    raise WireError(f"{letter.owner} speaks for site {message.head.site}")
                if message.head.round > self._hub.applied[site]:
                    decode(message.head, letter.arrays, self._shapes, who=letter.owner)
                    arrays = tuple(array.copy() for array in letter.arrays)
                    self._hub.offer(site, Brought(message.head, arrays))
            except WireError as error:
                self._listener.refuse(letter, error.message)
                return
        elif isinstance(message, Beat) and message.exchanges + 1 < self._log.first:
            reason = (
                f"{letter.owner} asks for exchange {message.exchanges + 1}, and the first kept is {self._log.first}"
            )
            self._listener.refuse(letter, f"{reason}: go on with its own folder (--resume)")
            return
        elif isinstance(message, Beat):
            if (
                other.beat is None
                or message.has_own != other.beat.has_own
                or message.exchanges < other.beat.exchanges  # nor does it get them from elsewhere
                or message.lost != other.beat.lost
                or (message.bulk and letter.sender != other.bulk)
            ):
                other.sent = message.exchanges  # it came back, or went back: from there on
                other.early.clear()
            other.sent = max(other.sent, message.exchanges)  # what it gets from elsewhere need not go
            for number in [each for each in other.sent_s if each <= message.exchanges]:
                other.receive_s = now_s - other.sent_s.pop(number)
            if message.bulk:
                other.bulk = letter.sender
            other.beat = message
        else:
            self._listener.refuse(letter, f"{type(message).__name__} is not for a site to say")
            return
        heard = Heard(
            life=self._life, exchanges=self._log.count, latest=self._hub.latest(site), every=self.every,
            over=self._hub.is_over(now_s, self._end_wait_s), needed=self._needed,
        )  # fmt: skip
        self._listener.reply(letter, heard)

    def _make(self, rounds: dict[int, Brought]) -> None:
        """Make an exchange of these rounds."""
        brought = [rounds[site] for site in sorted(rounds)]
        heads = tuple(msgspec.structs.replace(each.head, num_arrays=len(each.arrays)) for each in brought)
        arrays = tuple(array for each in brought for array in each.arrays)
        news = {head.site: (head.round, head.step) for head in heads}
        self._so_far = tuple(news.get(site, each) for site, each in enumerate(self._so_far))
        exchange = Exchange(number=self._log.count + 1, rounds=heads, so_far=self._so_far)
        self._log.write(exchange, arrays)
        self._made = {number: each for number, each in self._made.items() if number > exchange.number - AT_ONCE}
        self._made[exchange.number] = (exchange, arrays)
        if self._is_chosen:
            self._choose()

    def _choose(self) -> None:
        """Choose how many steps rounds have."""
        beats = [other.beat for other in self._others.values() if other.beat is not None]
        steps_s = [beat.step_s for beat in (*beats, self._beat) if beat is not None and beat.step_s > 0]
        there_and_back = [
            other.receive_s + other.beat.send_s for other in self._others.values() if other.beat is not None
        ]
        if steps_s and there_and_back:
            self.every = steps_of_a_round(self.every, transfer_s=max(there_and_back), step_s=min(steps_s))

    def _send(self, site: int, other: Other, now_s: float) -> None:
        """Send a site what it lacks, a few exchanges at once."""
        if other.beat is None or not other.bulk or self._hub.silent_s(site, now_s) >= self._wait_s:
            return
        if other.sent_s and now_s - min(other.sent_s.values()) > AGAIN_S:
            other.sent, other.sent_s = other.beat.exchanges, {}
            other.early.clear()
        while other.sent < min(self._log.count, other.beat.exchanges + AT_ONCE):
            number = other.sent + 1
            if not self._listener.send(other.bulk, *self._for(site, number, other.beat.has_own, other.early)):
                other.bulk = b""
                return
            other.sent, other.sent_s[number] = number, now_s
        for origin, brought in self._hub.last_rounds():
            if origin not in (site, *other.early) and other.sent == self._log.count:
                if not self._listener.send(other.bulk, Early(head=brought.head), brought.arrays):
                    other.bulk = b""
                    return
                other.early.add(origin)

    def _for(self, site: int, number: int, has_own: int, early: Collection[int] = ()) -> tuple[Exchange, Arrays]:
        """Return an exchange without the arrays that the reader has, for it sent them, or got them before."""
        return left_for(site, *(self._made.get(number) or self._log.read(number)), has_own=has_own, early=early)

    def _tell_of_away(self, now_s: float) -> None:
        """Say who is not waited for any more, and who is back."""
        away = self._hub.away(now_s)
        for site, other in self._others.items():
            if (site in away) != other.is_away:
                other.is_away = site in away
                word = f"silent for {self._wait_s:.0f} s: the others go on without it" if other.is_away else "back"
                self._tell(f"site {self._names[site]} is {word}")

    @property
    def sockets(self) -> list[object]:
        """Return the sockets on which something may come."""
        return [self._listener.socket]

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
