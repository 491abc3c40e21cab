"""Shares that nobody's is much below: a sum over workers of which one has nearly all of the batch is that one's."""

from __future__ import annotations

from collections.abc import Mapping

PART = 4
"""Everyone has a part in so many of an equal share, at least."""


def least_share(batch: int, num_workers: int) -> int:
    """Return the fewest samples of a batch that one of so many workers has: one at least, where there are as many."""
    return max(1, batch // (PART * num_workers))


def with_floor(main: Mapping[str, int]) -> dict[str, int]:
    """Return shares of as many samples together, none below the least share while there is enough for all.

    Those who have most give what others lack.
    """
    shares, least = dict(main), least_share(sum(main.values()), len(main))
    for name in main:
        while shares[name] < least:
            giver = max(shares, key=lambda each: shares[each])
            given = min(least - shares[name], shares[giver] - least)
            if given <= 0:
                break  # fewer samples than workers
            shares[giver] -= given
            shares[name] += given
    return shares
