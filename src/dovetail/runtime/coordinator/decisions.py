"""What the coordinator decides, in order: recorded by the parts that decide, carried out by the loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dovetail.runtime.coordinator.journal import JournalLine
from dovetail.runtime.coordinator.membership import Member
from dovetail.runtime.figures import Counted
from dovetail.runtime.messages import Message


@dataclass(frozen=True, slots=True)
class Send:
    """A message for whoever is at an address."""

    to: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class Write:
    """A line of the journal: on disk before anything that comes after it is carried out."""

    line: JournalLine


@dataclass(frozen=True, slots=True)
class Say:
    """An event that people want to hear of."""

    text: str


Decision = Send | Write | Say | Counted
MOST_LINES = 20_000
"""Lines after which the journal begins anew: it is read when a coordinator comes back."""


class Decisions:
    """Those that nobody has carried out yet."""

    def __init__(self) -> None:
        self._made: list[Decision] = []
        self._num_lines = 0
        """Of the journal since its last start."""

    def take(self) -> list[Decision]:
        """Return them, and start anew."""
        made, self._made = self._made, []
        return made

    def send(self, member: Member, message: Message) -> None:
        """Send a message to a member."""
        self._made.append(Send(member.address, message))

    def send_all(self, members: Iterable[Member], message: Message) -> None:
        """Send the same to several members."""
        self._made.extend(Send(member.address, message) for member in members)

    def write(self, **entry: Any) -> None:
        """Write a line of the journal."""
        line = JournalLine(**entry)
        self._num_lines = self._num_lines + 1 if line.start is None else 0
        self._made.append(Write(line))

    @property
    def journal_is_long(self) -> bool:
        """Say whether the journal should begin anew."""
        return self._num_lines >= MOST_LINES

    def say(self, text: str) -> None:
        """Tell people."""
        self._made.append(Say(text))

    def count(self, counted: Counted) -> None:
        """Add to the figures."""
        self._made.append(counted)
