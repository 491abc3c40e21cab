"""Catching up: a site that has missed exchanges gets them from the nearest peer that keeps them.

Who is nearest is measured: of those that answer, the one whose answers take the least time. Where it is the first site,
that sends what is missing by itself. Where it is another, or the first site is silent, exchanges are fetched there one
by one, and the first site is told that they are taken care of. A site that stops giving is given up for a while.

Only sites with an address of their own keep exchanges for others, who have to reach them. What a site keeps is of use
to itself as well: what came after its last checkpoint is on its own disk when it comes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.sites.exchange_log import ExchangeLog, left_for
from dovetail.runtime.sites.messages import Exchange, Has, Want
from dovetail.runtime.sites.rounds import Arrays
from dovetail.transport import Caller, Envelope, Listener, PeerLost, Refused, WireError


class CatchUpPeer:
    """Exchanges on disk, and a listener for those who want them."""

    def __init__(self, names: Sequence[str], here: int, listener: Listener, log: ExchangeLog) -> None:
        """Give what the log has to the other sites."""
        self._names, self._here, self._listener, self._log = names, here, listener, log
        self.given = 0

    def keep(self, exchange: Exchange, arrays: Arrays) -> None:
        """Keep an exchange with all its arrays, where it is the next; one after a gap begins anew."""
        if exchange.number > self._log.count:
            if exchange.number > self._log.count + 1:
                self._log.begin_at(exchange.number)
            try:
                self._log.write(exchange, arrays)
            except OSError:  # what is kept here is of use to others alone: they get it from the first site
                self._log.begin_at(exchange.number + 1)

    def drop_before(self, number: int) -> None:
        """Let go of what no site needs any more."""
        self._log.drop_before(number)

    def newest_after(self, number: int) -> int:
        """Return up to which exchange all are here that follow `number`; that number where none does."""
        return self._log.count if self._log.first <= number + 1 <= self._log.count else number

    def find(self, number: int) -> tuple[Exchange, Arrays] | None:
        """Return an exchange that is here."""
        if not self._log.first <= number <= self._log.count:
            return None
        try:
            return self._log.read(number)
        except TrainingError:  # others have it: what cannot be read here is as good as not here
            self._log.begin_at(self._log.count + 1)
            return None

    def go_on(self) -> None:
        """Answer those who ask."""
        for _ in range(16):
            if (envelope := self._listener.receive(0)) is None:
                return
            self._answer(envelope)

    def _answer(self, envelope: Envelope) -> None:
        """Give a site what it wants; what is not here is answered with what is."""
        if envelope.owner not in self._names or envelope.owner == self._names[self._here]:
            self._listener.refuse(envelope, f"{envelope.owner} is no other site of this run")
        elif not isinstance(envelope.message, Want):
            self._listener.refuse(envelope, f"{type(envelope.message).__name__} is for the first site to hear")
        elif (found := self.find(envelope.message.number)) is None:
            self._listener.reply(envelope, Has(first=self._log.first, count=self._log.count))
        else:
            site = self._names.index(envelope.owner)
            self.given += 1
            self._listener.reply(envelope, *left_for(site, *found, has_own=envelope.message.has_own))

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


MISSED = 3
"""Exchanges that a site lacks when it has missed something: fewer are just on their way."""
PEEK_S = 1.0
"""How often others are asked what they have, while something is missing."""
PATIENCE_S = 20.0
"""How long a site that gives may be silent."""
AHEAD = 2
"""Exchanges that are fetched before the parameters have those before them."""


@dataclass(slots=True)
class Peer:
    """Another site that gives."""

    name: str
    connect: Callable[[], Caller]
    line: Caller | None = None
    asked: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Which exchange each request was for, and when it was made."""
    latency_s: float = math.inf
    has: Has | None = None
    not_before_s: float = 0.0

    def ask(self, want: Want, now_s: float) -> None:
        """Ask something."""
        if self.line is None:
            self.line = self.connect()
        with suppress(PeerLost):
            self.asked[self.line.ask(want)] = (want.number, now_s)

    def hang_up(self) -> None:
        """Forget what was asked: connections are made when somebody is behind, and not kept."""
        if self.line is not None:
            self.line.close()
        self.line, self.asked, self.has, self.latency_s = None, {}, None, math.inf


class Nearby:
    """The other sites that give; `connect` of each makes a connection."""

    def __init__(self, connect: Mapping[str, Callable[[], Caller]], tell: Callable[[str], None]) -> None:
        self._peers = [Peer(name, each) for name, each in connect.items()]
        self._tell = tell
        self._peeked_s = -math.inf
        self._from: Peer | None = None
        self._wanted: int | None = None
        self._wanted_s = 0.0
        self.found: dict[int, tuple[Exchange, Arrays]] = {}

    @property
    def pledged(self) -> int:
        """Return up to which exchange a site gives what is missing, 0 where none does."""
        return 0 if self._from is None or self._from.has is None else self._from.has.count

    def go_on(self, now_s: float, have: int, *, has_own: int, first_has: int | None, first_s: float) -> None:
        """Fetch what follows the exchange `have`.

        The first site has `first_has` exchanges, None where it is silent, and answers within `first_s`.
        """
        self.found = {number: each for number, each in self.found.items() if number > have}
        self._listen(now_s)
        if self._from is not None:
            self._fetch(now_s, have, has_own)
        elif first_has is None or first_has - have >= MISSED:
            self._peek(now_s, has_own)
            self._choose(now_s, have, *((math.inf, 1) if first_has is None else (first_s, MISSED)))
        else:
            self._hang_up()

    def _peek(self, now_s: float, has_own: int) -> None:
        """Ask all what they have: number 0 is an exchange that nobody has."""
        if now_s - self._peeked_s >= PEEK_S:
            self._peeked_s = now_s
            for peer in self._peers:
                if now_s >= peer.not_before_s and len(peer.asked) < AHEAD:
                    peer.ask(Want(number=0, has_own=has_own), now_s)

    def _choose(self, now_s: float, have: int, first_s: float, missed: int) -> None:
        """Take the nearest that has what comes next, where it is nearer than the first site."""
        able = [
            peer
            for peer in self._peers
            if peer.has is not None
            and now_s >= peer.not_before_s
            and peer.has.first <= have + 1
            and peer.has.count - have >= missed
            and peer.latency_s < first_s
        ]
        if able:
            self._from = min(able, key=lambda peer: peer.latency_s)
            self._wanted = None
            self._tell(f"catches up from {self._from.name}: exchanges {have + 1} to {self.pledged}")

    def _fetch(self, now_s: float, have: int, has_own: int) -> None:
        """Ask for the next exchange; be done when all that were promised are here, or nothing comes."""
        peer = self._from
        if peer is None or peer.has is None or have >= peer.has.count:
            self._hang_up()
        elif self._wanted is not None and now_s - self._wanted_s > PATIENCE_S:
            self._tell(f"{peer.name} gives no exchanges any more")
            peer.not_before_s = now_s + PATIENCE_S
            self._hang_up()
        elif self._wanted is None:
            number = next((each for each in range(have + 1, have + 1 + AHEAD) if each not in self.found), None)
            if number is not None and number <= peer.has.count:
                self._wanted, self._wanted_s = number, now_s
                peer.ask(Want(number=number, has_own=has_own), now_s)

    def _listen(self, now_s: float) -> None:
        for peer in self._peers:
            for _ in range(8):
                try:
                    envelope = None if peer.line is None else peer.line.receive(0)
                except WireError as error:
                    self._tell(f"{peer.name} sent what makes no sense: {error}")
                    continue
                if envelope is None:
                    break
                self._hear(peer, envelope, now_s)

    def _hear(self, peer: Peer, envelope: Envelope, now_s: float) -> None:
        number, asked_s = peer.asked.pop(envelope.request, (0, now_s))
        message = envelope.message
        if isinstance(message, Has):
            peer.has = message
        if isinstance(message, Has) and not number:
            peer.latency_s = min(peer.latency_s, now_s - asked_s)
        elif peer is self._from:
            self._wanted = None
            if isinstance(message, Exchange) and message.number == number:
                self.found[number] = (message, tuple(array.copy() for array in envelope.arrays))
            else:
                self._from = None  # it has not what it had
        if isinstance(message, Refused):
            self._tell(f"{peer.name} refused a message of this site: {message.reason}")
            peer.not_before_s, peer.has = now_s + PATIENCE_S, None

    def _hang_up(self) -> None:
        self._from = self._wanted = None
        for peer in self._peers:
            peer.hang_up()

    def close(self) -> None:
        """Hang up for good."""
        self._hang_up()
