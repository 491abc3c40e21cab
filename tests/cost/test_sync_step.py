"""Steps of a pipeline that fills and drains, against one that is played micro-batch by micro-batch."""

from __future__ import annotations

import heapq
from itertools import product

import pytest

from dovetail.cost.pipeline import sync_step_seconds


def played(seconds: tuple[float, ...], workers: tuple[int, ...], micro_batches: int) -> float:
    """Return when the last micro-batch leaves the last stage, each taken by whoever is free first."""
    ready = [0.0] * micro_batches
    for stage_s, count in zip(seconds, workers, strict=True):
        free = [0.0] * count
        each_s = count * stage_s / micro_batches
        left = []
        for came_s in sorted(ready):
            end_s = max(came_s, heapq.heappop(free)) + each_s
            heapq.heappush(free, end_s)
            left.append(end_s)
        ready = left
    return max(ready)


@pytest.mark.parametrize("seconds", list(product((1.0, 2.0, 5.0), repeat=3)))
@pytest.mark.parametrize("workers", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (4, 2, 1)])
def test_a_step_takes_what_playing_it_shows(seconds, workers):
    for micro_batches in (4, 8, 64):
        found = sync_step_seconds(seconds, workers, micro_batches=micro_batches)
        # Whole micro-batches leave together where workers are several: at most one such group is between the two.
        group_s = max(count * each / micro_batches for each, count in zip(seconds, workers, strict=True))
        assert found == pytest.approx(played(seconds, workers, micro_batches), abs=group_s + 1e-9)


def test_one_worker_a_stage_is_exact():
    stages = ((3.0, 1.0, 2.0), (1, 1, 1))

    assert sync_step_seconds(*stages, micro_batches=6) == pytest.approx(played(*stages, 6))


def test_with_one_micro_batch_the_stages_take_turns():
    assert sync_step_seconds((3.0, 1.0, 2.0), (1, 1, 1), micro_batches=1) == pytest.approx(6.0)


def test_shared_cores_have_to_hold_all_of_the_work():
    assert sync_step_seconds((1.0, 1.0), (4, 2), micro_batches=1000, work_s=4.0 + 2.0, cores=2) == pytest.approx(3.0)
