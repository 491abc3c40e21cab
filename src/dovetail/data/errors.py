"""What can go wrong with training data, and rows that could not be understood: only so many are let pass.

DovetailError
└── DataError               data that cannot be found, opened or understood
    └── BadRowsError        more broken rows than were allowed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dovetail.errors import DovetailError

MOST_SHOWN = 5
"""How many broken rows are kept as examples."""


class DataError(DovetailError):
    """Data that cannot be found, opened or understood."""


class BadRowsError(DataError):
    """More broken rows than were allowed."""


class DataWarning(UserWarning):
    """Data that can be read, but look as if they were meant otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """Where a broken row stands, and what is wrong with it."""

    file: str
    row: int
    """Counted from 1; a header is not a row."""
    reason: str

    def __str__(self) -> str:
        """Return `file, row 7: reason`."""
        return f"{self.file}, row {self.row:,}: {self.reason}"


@dataclass(slots=True)
class BadRows:
    """What was skipped so far."""

    by_reason: Counter[str] = field(default_factory=Counter)
    examples: list[BadRow] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How many rows were skipped."""
        return sum(self.by_reason.values())

    def add(self, rows: Iterable[BadRow]) -> None:
        """Count rows, and keep the first few."""
        for row in rows:
            self.by_reason[row.reason] += 1
            if len(self.examples) < MOST_SHOWN:
                self.examples.append(row)

    def merge(self, by_reason: Mapping[str, int], examples: Iterable[BadRow]) -> None:
        """Count rows of which only the first few are known one by one."""
        self.by_reason.update(by_reason)
        self.examples.extend(list(examples)[: MOST_SHOWN - len(self.examples)])

    def check(self, max_bad_rows: int) -> None:
        """Refuse to go on after more than `max_bad_rows` of them."""
        if self.total > max_bad_rows:
            shown = "\n".join(f"  {row}" for row in self.examples)
            raise BadRowsError(
                f"{self.total:,} broken row{_s(self.total)}, and at most {max_bad_rows:,} are allowed; "
                f"the first:\n{shown}",
                hint=f"repair them, or skip them with --max-bad-rows {max(10, 2 * self.total)}",
            )

    def summary(self) -> str:
        """Return one line: how many rows were skipped, and why."""
        if not self.total:
            return "no broken rows"
        reasons = "; ".join(f"{count:,} x {reason}" for reason, count in self.by_reason.most_common())
        return f"{self.total:,} broken row{_s(self.total)} skipped: {reasons}"


def _s(count: int) -> str:
    """Return the ending of a plural."""
    return "" if count == 1 else "s"
