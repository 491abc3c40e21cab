"""The aggregator, at the first site: which rounds make an exchange, and the line that takes them in and sends it.

An exchange takes the next round of every site that has one here. It is made once every site that is heard of has one;
a site that has been silent for `wait_s` is not waited for, and takes part again when it is back. Each round counts
once, whoever sends it again.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from dovetail.runtime.sites.exchange_log import ExchangeLog, left_for
from dovetail.runtime.sites.messages import Beat, Early, Exchange, Heard, Offer, RoundHead
from dovetail.runtime.sites.rounds import Arrays, Shapes, decode
from dovetail.transport import Envelope, Listener, WireError

HIDDEN_PART = 0.8
"""Transfers hide when they take this part of the time of a round's steps; the rest is for what varies."""
FEWEST, MOST = 4, 4096
MOST_GROWTH = 2.0


def steps_of_a_round(now: int, *, transfer_s: float, step_s: float) -> int:
    """Return how many steps rounds are to have, where they have `now` and a round takes `transfer_s` there and back.

        steps = transfer / (0.8 step)

    At most twice or half of what it was: rounds of more steps have more rows, so transfers change with it.
    """
    if step_s <= 0 or transfer_s <= 0:
        return now
    wanted = math.ceil(transfer_s / (HIDDEN_PART * step_s))
    return max(FEWEST, min(MOST, max(math.floor(now / MOST_GROWTH), min(math.ceil(now * MOST_GROWTH), wanted))))


@dataclass(frozen=True, slots=True)
class BroughtRound:
    """A round that a site brought."""

    head: RoundHead
    arrays: Arrays


class Aggregation:
    """What is here of each site, and what is in exchanges already."""

    def __init__(
        self,
        num_sites: int,
        *,
        wait_s: float,
        now_s: float,
        applied: Mapping[int, int] | None = None,
        finished: Sequence[int] = (),
    ) -> None:
        """Begin after exchanges that hold the rounds `applied` of each site; those `finished` bring no more."""
        self._wait_s = wait_s
        self.applied = dict.fromkeys(range(num_sites), 0) | dict(applied or {})
        self._finished = set(finished)
        self._here: dict[int, dict[int, BroughtRound]] = {site: {} for site in range(num_sites)}
        self._heard_s = dict.fromkeys(range(num_sites), now_s)

    def heard(self, site: int, now_s: float) -> None:
        """Note that a site lives."""
        self._heard_s[site] = now_s

    def silent_s(self, site: int, now_s: float) -> float:
        """Return how long a site has not been heard of."""
        return now_s - self._heard_s[site]

    def offer(self, site: int, brought: BroughtRound) -> bool:
        """Take in a round; False where it is here already, or counts."""
        if brought.head.round <= self.applied[site] or brought.head.round in self._here[site]:
            return False
        self._here[site][brought.head.round] = brought
        return True

    def latest(self, site: int) -> int:
        """Return the last round of a site that need not be sent again, nor any before it."""
        latest = self.applied[site]
        while latest + 1 in self._here[site]:
            latest += 1
        return latest

    def last_rounds(self) -> list[tuple[int, BroughtRound]]:
        """Return the last rounds of sites that are here and in no exchange yet."""
        return [(site, each) for site, rounds in self._here.items() for each in rounds.values() if each.head.last]

    def away(self, now_s: float) -> list[int]:
        """Return the sites that are not waited for, though they are not done."""
        return [site for site in self.unfinished if self.silent_s(site, now_s) >= self._wait_s]

    @property
    def unfinished(self) -> list[int]:
        """Return the sites that have not brought their last round."""
        return [site for site in self.applied if site not in self._finished]

    def next_exchange(self, now_s: float) -> dict[int, BroughtRound]:
        """Return the rounds of the next exchange by site, which count from now on; none where it is too early."""
        ready = {
            site: rounds[number] for site, rounds in self._here.items() if (number := self.applied[site] + 1) in rounds
        }
        away = set(self.away(now_s))
        if not ready or any(site not in ready and site not in away for site in self.unfinished):
            return {}
        for site, brought in ready.items():
            self.applied[site] = brought.head.round
            del self._here[site][brought.head.round]
            if brought.head.last:
                self._finished.add(site)
        return ready

    def is_over(self, now_s: float, end_wait_s: float) -> bool:
        """Say whether no site is expected to bring more: all are done, or have been silent for so long."""
        return all(self.silent_s(site, now_s) >= end_wait_s for site in self.unfinished)


AT_ONCE = 2
"""Exchanges that may be on their way to a site."""
AGAIN_S = 60.0
"""When an exchange is sent again that a living site does not have: a connection broke."""


@dataclass(slots=True)
class OtherSite:
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


class AggregatorLine:
    """Exchanges are made here."""

    def __init__(
        self,
        names: Sequence[str],
        last_steps: Sequence[int],
        listener: Listener,
        log: ExchangeLog,
        shapes: Shapes,
        *,
        every: int | None,
        first_every: int,
        wait_s: float,
        end_wait_s: float,
        now_s: float,
        tell: Callable[[str], None],
    ) -> None:
        """Go on after the exchanges in the log; without `every` the steps of a round are chosen."""
        self._names, self._listener, self._log, self._shapes = names, listener, log, shapes
        self._wait_s, self._end_wait_s, self._tell = wait_s, end_wait_s, tell
        self.every, self._is_chosen = every or first_every, every is None
        self._life = secrets.token_hex(8)
        self._so_far = log.read(log.count)[0].so_far if log.count else ((0, 0),) * len(names)
        self._aggregation = Aggregation(
            len(names),
            wait_s=wait_s,
            now_s=now_s,
            applied={site: each[0] for site, each in enumerate(self._so_far)},
            finished=[site for site, (_, step) in enumerate(self._so_far) if step >= last_steps[site]],
        )
        self._others = {site: OtherSite() for site in range(1, len(names))}
        self._beat: Beat | None = None
        self._now_s = now_s
        self._needed = 0
        self._made: dict[int, tuple[Exchange, Arrays]] = {}

    # -- as a line -----------------------------------------------------------------------------------------------------

    def offer(self, head: RoundHead, arrays: Arrays, now_s: float) -> None:
        """Have a round of this site's own in the next exchange."""
        self._aggregation.offer(0, BroughtRound(head, arrays))

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
        if not self._aggregation.is_over(self._now_s, self._end_wait_s):
            return None
        for site, other in self._others.items():
            is_done = other.beat is not None and other.beat.done
            if not is_done and self._aggregation.silent_s(site, self._now_s) < self._wait_s:
                return None
        return self._log.count

    def go_on(self, now_s: float, beat: Beat) -> None:
        """Hear the others, make exchanges, send them."""
        self._now_s, self._beat = now_s, beat
        self._aggregation.heard(0, now_s)
        for _ in range(64):
            if (envelope := self._listener.receive(0)) is None:
                break
            self._hear(envelope, now_s)
        while rounds := self._aggregation.next_exchange(now_s):
            self._make(rounds)
        for site, other in self._others.items():
            self._send(site, other, now_s)
        self._tell_of_away(now_s)
        kept = [beat.kept, *(0 if other.beat is None else other.beat.kept for other in self._others.values())]
        self._needed = min(kept) + 1
        self._log.drop_before(self._needed)

    # -- the others ----------------------------------------------------------------------------------------------------

    def _hear(self, envelope: Envelope, now_s: float) -> None:
        """Take in what a site says; what makes no sense is refused."""
        if envelope.owner not in self._names[1:]:
            self._listener.refuse(envelope, f"{envelope.owner} is no other site of this run")
            return
        site, message = self._names.index(envelope.owner), envelope.message
        other = self._others[site]
        self._aggregation.heard(site, now_s)
        if isinstance(message, Offer):
            try:
                if message.head.site != site:
                    raise WireError(f"{envelope.owner} speaks for site {message.head.site}")
                if message.head.round > self._aggregation.applied[site]:
                    decode(message.head, envelope.arrays, self._shapes, who=envelope.owner)
                    arrays = tuple(array.copy() for array in envelope.arrays)
                    self._aggregation.offer(site, BroughtRound(message.head, arrays))
            except WireError as error:
                self._listener.refuse(envelope, error.message)
                return
        elif isinstance(message, Beat) and message.exchanges + 1 < self._log.first:
            reason = (
                f"{envelope.owner} asks for exchange {message.exchanges + 1}, and the first kept is {self._log.first}"
            )
            self._listener.refuse(envelope, f"{reason}: go on with its own folder (--resume)")
            return
        elif isinstance(message, Beat):
            if (
                other.beat is None
                or message.has_own != other.beat.has_own
                or message.exchanges < other.beat.exchanges  # nor does it get them from elsewhere
                or message.lost != other.beat.lost
                or (message.bulk and envelope.sender != other.bulk)
            ):
                other.sent = message.exchanges  # it came back, or went back: from there on
                other.early.clear()
            other.sent = max(other.sent, message.exchanges)  # what it gets from elsewhere need not go
            for number in [each for each in other.sent_s if each <= message.exchanges]:
                other.receive_s = now_s - other.sent_s.pop(number)
            if message.bulk:
                other.bulk = envelope.sender
            other.beat = message
        else:
            self._listener.refuse(envelope, f"{type(message).__name__} is not for a site to say")
            return
        heard = Heard(
            life=self._life,
            exchanges=self._log.count,
            latest=self._aggregation.latest(site),
            every=self.every,
            over=self._aggregation.is_over(now_s, self._end_wait_s),
            needed=self._needed,
        )
        self._listener.reply(envelope, heard)

    def _make(self, rounds: dict[int, BroughtRound]) -> None:
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
        beats = [other.beat for other in self._others.values() if other.beat is not None]
        steps_s = [beat.step_s for beat in (*beats, self._beat) if beat is not None and beat.step_s > 0]
        there_and_back = [
            other.receive_s + other.beat.send_s for other in self._others.values() if other.beat is not None
        ]
        if steps_s and there_and_back:
            self.every = steps_of_a_round(self.every, transfer_s=max(there_and_back), step_s=min(steps_s))

    def _send(self, site: int, other: OtherSite, now_s: float) -> None:
        """Send a site what it lacks, a few exchanges at once."""
        if other.beat is None or not other.bulk or self._aggregation.silent_s(site, now_s) >= self._wait_s:
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
        for origin, brought in self._aggregation.last_rounds():
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
        away = self._aggregation.away(now_s)
        for site, other in self._others.items():
            if (site in away) != other.is_away:
                other.is_away = site in away
                word = f"silent for {self._wait_s:.0f} s: the others go on without it" if other.is_away else "back"
                self._tell(f"site {self._names[site]} is {word}")

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
