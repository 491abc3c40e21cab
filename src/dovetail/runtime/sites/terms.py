"""What the exchanges of a server need of others: its parameters, a line to the other sites, and terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dovetail.runtime.sites.combine import Rule
from dovetail.runtime.sites.messages import Beat, Exchange, RoundHead
from dovetail.runtime.sites.progress import Floats, Rows
from dovetail.runtime.sites.rounds import Arrays


class Store(Protocol):
    """The parameters of a server."""

    version: int
    """Steps that they have."""
    values: Floats
    """The dense ones."""

    def rows_of(self, table: int) -> Rows:
        """Return the rows of a table, as they are after the last step."""
        ...

    def corrected(self) -> None:
        """Hear that parameters have changed by something else than a step."""
        ...


class Line(Protocol):
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
