"""How much a worker that turns out slow gives back of what it has not begun."""

from __future__ import annotations

from collections.abc import Sequence


def num_given_back(
    unbegun: Sequence[int], *, left_s: float, sample_s: float, taker_samples_per_s: float, taker_fixed_s: float
) -> int:
    """Return how many micro-batches, from the last one on, another worker should have.

    They have `unbegun` samples each, which take this worker `sample_s` apiece once it has ended what it is at, in
    `left_s`. As many go as the other ends before this worker ends the rest:

        fixed + given / rate <= left + (all - given) sample
    """
    if taker_samples_per_s <= 0 or sample_s <= 0:
        return 0
    rest, given, count = sum(unbegun), 0, 0
    for samples in reversed(unbegun):
        given += samples
        if taker_fixed_s + given / taker_samples_per_s > left_s + (rest - given) * sample_s:
            break
        count += 1
    return count
