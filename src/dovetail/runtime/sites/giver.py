"""A site that keeps the exchanges it has, for others that missed some: who comes back asks the nearest that has them.

Only sites with an address of their own do, for the others have to reach them. What a site keeps is of use to itself as
well: what came after its last checkpoint is on its own disk when it comes back.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.sites.kept import ExchangeLog, left_for
from dovetail.runtime.sites.messages import Exchange, Has, Want
from dovetail.runtime.sites.rounds import Arrays
from dovetail.transport import Letter, Listener


class Giver:
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
            if (letter := self._listener.receive(0)) is None:
                return
            self._answer(letter)

    def _answer(self, letter: Letter) -> None:
        """Give a site what it wants; what is not here is answered with what is."""
        if letter.owner not in self._names or letter.owner == self._names[self._here]:
            self._listener.refuse(letter, f"{letter.owner} is no other site of this run")
        elif not isinstance(letter.message, Want):
            self._listener.refuse(letter, f"{type(letter.message).__name__} is for the first site to hear")
        elif (found := self.find(letter.message.number)) is None:
            self._listener.reply(letter, Has(first=self._log.first, count=self._log.count))
        else:
            site = self._names.index(letter.owner)
            self.given += 1
            self._listener.reply(letter, *left_for(site, *found, has_own=letter.message.has_own))

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
