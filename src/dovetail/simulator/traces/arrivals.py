"""When jobs arrive: Poisson, in bursts, or by day and night; all from one generator, all with the same mean gap."""

from __future__ import annotations

import math
import random
from typing import Literal, get_args

Pattern = Literal["poisson", "bursty", "diurnal"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)

BURST_JOBS = 8
"""How many jobs a burst has on average."""
BURST_GAP_S = 5.0
"""The mean gap inside a burst."""
DAY_S = 86400.0
SWING = 0.8
"""How far the rate goes up by day and down by night, as a share of its mean."""


def arrivals_s(pattern: Pattern, *, count: int, mean_gap_s: float, draw: random.Random) -> list[float]:
    """Return the seconds at which `count` jobs arrive, the first at zero."""
    if pattern == "poisson":
        gaps = [draw.expovariate(1 / mean_gap_s) for _ in range(count - 1)]
    elif pattern == "bursty":
        gaps = [_bursty_gap_s(mean_gap_s, draw) for _ in range(count - 1)]
    else:
        return _diurnal(count, mean_gap_s, draw)
    times = [0.0]
    for gap_s in gaps:
        times.append(times[-1] + gap_s)
    return times


def _bursty_gap_s(mean_gap_s: float, draw: random.Random) -> float:
    """Return a gap: most are short, one in `BURST_JOBS` so long that the mean is right."""
    if draw.random() < 1 / BURST_JOBS:
        between_s = BURST_JOBS * mean_gap_s - (BURST_JOBS - 1) * min(BURST_GAP_S, mean_gap_s / 2)
        return draw.expovariate(1 / between_s)
    return draw.expovariate(1 / min(BURST_GAP_S, mean_gap_s / 2))


def _diurnal(count: int, mean_gap_s: float, draw: random.Random) -> list[float]:
    """Return arrivals whose rate follows a sine over the day, by thinning a faster Poisson process."""
    times: list[float] = []
    now_s = 0.0
    while len(times) < count:
        now_s += draw.expovariate((1 + SWING) / mean_gap_s)
        if draw.random() < (1 + SWING * math.sin(2 * math.pi * now_s / DAY_S)) / (1 + SWING):
            times.append(now_s)
    return [time_s - times[0] for time_s in times]
