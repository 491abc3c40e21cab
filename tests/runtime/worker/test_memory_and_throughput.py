"""What a worker knows of itself: memory, pace, idle time, scores."""

import numpy as np
import pytest
import torch

from dovetail.runtime.messages import Span
from dovetail.runtime.worker.compute.memory import MemoryBudget, free_memory_bytes, saved_bytes
from dovetail.runtime.worker.tasks import score_counts
from dovetail.runtime.worker.tasks.inbox import Throughput
from dovetail.runtime.worker.tasks.score_counts import NUM_BINS, ScoreCounts
from dovetail.runtime.worker.tasks.spans import IdleTime


def test_before_a_sample_is_known_the_micro_batch_is_the_run_files():
    room = MemoryBudget(None, 4096, lambda: 0.0)

    assert room.most_samples() is None
    assert room.most_at_once() == 4096


def test_four_micro_batches_fit_eight_tenths_of_what_is_free(monkeypatch):
    monkeypatch.setattr("dovetail.runtime.worker.compute.memory.free_memory_bytes", lambda limit: limit)

    assert MemoryBudget(1_000_000, 4096, lambda: 100.0).most_samples() == 8000
    assert MemoryBudget(1_000_000, 4096, lambda: 100.0).most_at_once() == 2000
    assert MemoryBudget(1_000_000, 512, lambda: 100.0).most_at_once() == 512
    assert MemoryBudget(1_000_000, 512, lambda: 1e9).most_at_once() == 1  # a sample at a time, at the least


def test_free_memory_is_what_the_limit_leaves():
    assert free_memory_bytes(1) == 0
    assert free_memory_bytes(None) > 0
    assert free_memory_bytes(1 << 60) == pytest.approx(free_memory_bytes(None), rel=0.2)


def test_bytes_that_autograd_keeps_are_counted_once_and_parameters_not_at_all():
    weight = torch.ones(1000, requires_grad=True)
    x = torch.ones(1000)

    with saved_bytes(weight) as saved:
        (weight * x + weight * x).sum()  # keeps x twice, and the weight

    assert saved.total == 4000


def test_a_pace_goes_three_tenths_of_the_way_to_what_was_seen():
    pace = Throughput()
    pace.add(samples=10, compute_s=1.0, fetch_s=2.0)
    assert (pace.busy_s(5), pace.fetch_s) == (0.5, 2.0)

    pace.add(samples=10, compute_s=2.0, fetch_s=1.0)
    assert pace.busy_s(100) == pytest.approx(13.0)
    assert pace.fetch_s == pytest.approx(1.7)

    pace.add(samples=0, compute_s=9.0, fetch_s=1.7)
    assert pace.busy_s(100) == pytest.approx(13.0)


def test_waits_one_after_the_other_are_drawn_as_one():
    idle = IdleTime()
    idle.add(10.0, 0.5)
    idle.add(10.5005, 0.5)
    idle.add(12.0, 0.0001)  # counts, and is not drawn
    idle.add(13.0, 1.0)
    idle.add_span(Span("reduce", 15.0, 16.0, 4))

    seconds, spans = idle.take()
    assert seconds == pytest.approx(3.0001)
    assert [(span.kind, span.start_s, span.end_s) for span in spans] == [
        ("wait", 10.0, pytest.approx(11.0005)),
        ("wait", 13.0, 14.0),
        ("reduce", 15.0, 16.0),
    ]
    assert idle.take() == (0.0, [])


def test_while_its_own_gradients_are_under_way_a_worker_is_not_idle():
    idle = IdleTime()
    idle.add(10.0, 1.0)
    idle.add(12.0, 1.0)
    idle.add_own(9.5, 10.25)  # a quarter of the first wait
    idle.add_own(12.9, 20.0)

    assert idle.take()[0] == pytest.approx(2.0 - 0.25 - 0.1)

    idle.add(30.0, 1.0)
    assert idle.take()[0] == pytest.approx(1.0)
    idle.add(40.0, 1.0)
    idle.add_own(30.5, 40.5)  # told late: half of a wait that was taken already, and half of this one
    assert idle.take()[0] == 0.0


def test_scores_are_counted_by_chance_and_told_now_and_then(monkeypatch):
    counts = ScoreCounts(["auc"])
    counts.add(torch.tensor([0.0, 0.0, 100.0, -100.0]), torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert counts.take() == ()

    monkeypatch.setattr(score_counts, "EVERY_S", 0.0)
    clicked, others, sums, statistics = counts.take()
    assert (sums.shape, statistics.shape) == ((0, 2), (0,))
    assert dict(zip(*np.nonzero(clicked), clicked[clicked > 0], strict=True)) == {NUM_BINS // 2: 1, NUM_BINS - 1: 1}
    assert dict(zip(*np.nonzero(others), others[others > 0], strict=True)) == {NUM_BINS // 2: 1, 0: 1}
    assert counts.take()[0].sum() == 0
