"""How many steps a round is to have: as few as hide the transfers."""

from __future__ import annotations

import math

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
