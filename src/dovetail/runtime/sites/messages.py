"""Messages between the servers of unlike sites; every server talks to its namesakes."""

from __future__ import annotations

import msgspec

from dovetail.runtime.messages.kind import MessageKind, check_numbers


class RoundHead(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Which round of which site, and what it is of."""

    site: int
    round: int
    """From 1 on; the journal of the site says at which step it was cut."""
    step: int
    """Steps that the site had done."""
    samples: int
    """How many are in this round."""
    bits: int
    last: bool = False
    num_arrays: int = 0
    """In an exchange: how many of its arrays are this round's; 0 where the reader has them already."""

    def __post_init__(self) -> None:
        """Refuse what no site counts."""
        check_numbers(self)


class Offer(MessageKind, frozen=True):
    """To the first site: a round, with the arrays that `rounds` describes."""

    head: RoundHead


class Beat(MessageKind, frozen=True):
    """To the first site, now and then: I live."""

    exchanges: int
    """How many are in the parameters here, on this site's disk, or promised by another."""
    kept: int
    """How many are in the last whole checkpoint: those are never asked for again."""
    has_own: int
    """The rounds of the sender from this one on are here as they were sent."""
    bulk: bool = False
    """Whether exchanges are to be sent to where this comes from."""
    step_s: float = 0.0
    """How long a step takes, and `send_s` how long the last round took to get there."""
    send_s: float = 0.0
    done: bool = False
    """Whether the sender needs nothing more."""
    lost: int = 0
    """Exchanges that came without arrays which were sent early, and did not arrive."""


class Heard(MessageKind, frozen=True):
    """The answer: what the first site has."""

    life: str
    """Unlike after every start of the first site's server: what was on its way to it then is lost."""
    exchanges: int
    latest: int
    """The last round of the asker that is here."""
    every: int
    """How many steps the next rounds are to have."""
    over: bool
    """Whether these exchanges are all that there will be."""
    needed: int = 0
    """The first exchange that some site may still ask for."""


class Early(MessageKind, frozen=True):
    """From the first site: the last round of a site, before it is in an exchange; everybody waits for that one."""

    head: RoundHead


class Exchange(MessageKind, frozen=True):
    """Rounds that count together: they are brought into the parameters at every site."""

    number: int
    """From 1 on."""
    rounds: tuple[RoundHead, ...]
    so_far: tuple[tuple[int, int], ...]
    """Of every site: the last round that counts then, and its step."""


class Want(MessageKind, frozen=True):
    """To a site that keeps exchanges: the asker has missed one. Answered with it, or with what there is."""

    number: int
    has_own: int


class Has(MessageKind, frozen=True):
    """The answer of a site that has not the exchange that was wanted: it has these."""

    first: int
    count: int


SiteMessage = Offer | Beat | Heard | Early | Exchange | Want | Has
