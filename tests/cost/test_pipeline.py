"""Pipeline formulas against schedules worked out by hand."""

import math

import pytest

from dovetail.cost.pipeline import PipelineStage, compute_alone_seconds, cycle_seconds, iteration_seconds
from dovetail.errors import DovetailError


def stage(compute_s, **fields):
    """A stage that sends 1 byte/s unless told otherwise."""
    return PipelineStage(compute_s=compute_s, **{"output_bytes_per_s": 1.0, "gradient_bytes_per_s": 1.0} | fields)


def test_free_links_leave_the_slowest_stage_and_one_pass():
    # Three more micro-batches at the pace of 5, after one that takes 2 + 5 + 3.
    assert compute_alone_seconds([2.0, 5.0, 3.0], num_micro_batches=4) == 3 * 5 + 10


def test_a_single_stage_never_sends_its_output():
    assert iteration_seconds([stage(2.0, output_bytes=100.0)], num_micro_batches=5) == 10.0


def test_a_middle_stage_pays_for_both_its_cuts_each_way():
    stages = [stage(4.0, output_bytes=1.0), stage(4.0, output_bytes=0.5), stage(4.0, output_bytes=9.0)]

    assert cycle_seconds(stages) == [6.0, 7.0, 5.0]


def test_a_slow_link_moves_the_bottleneck():
    # The first stage computes least but sends for 3 s each way: 1 + 6 = 7; the second 2 + 6 + 1 = 9; the third 6 + 1.
    stages = [stage(1.0, output_bytes=3.0), stage(2.0, output_bytes=0.5), stage(6.0)]

    # 9 more at 9 s; the first pass: 1 + 2 + 6 of computation, 2 (3 + 0.5) on the wire.
    assert iteration_seconds(stages, num_micro_batches=10) == 9 * 9 + 9 + 7


def test_one_micro_batch_crosses_every_cut_once_each_way():
    stages = [stage(1.0, output_bytes=2.0), stage(1.0)]

    assert iteration_seconds(stages, num_micro_batches=1) == 2 + 4


def test_the_slowest_ring_and_update_end_the_iteration():
    # Two replicas exchange the payload once: 6 s, and 1 s of update; four take 2 * 3/4 * 4 = 6 s, and 2 s.
    stages = [
        stage(1.0, gradient_bytes=6.0, num_replicas=2, update_s=1.0),
        stage(1.0, gradient_bytes=4.0, num_replicas=4, update_s=2.0),
    ]

    assert iteration_seconds(stages, num_micro_batches=3) == pytest.approx(2 + 2 + 8)


def test_one_replica_has_nothing_to_sum():
    assert stage(1.0, gradient_bytes=1e9).ring_s == 0.0


def test_a_stage_on_free_links_takes_no_time_to_talk():
    free = PipelineStage(compute_s=1.0, output_bytes=1e9, gradient_bytes=1e9, num_replicas=8)

    assert (free.message_s, free.ring_s) == (0.0, 0.0)
    assert free.output_bytes_per_s == math.inf


@pytest.mark.parametrize(
    "fields",
    [{"compute_s": -1.0}, {"output_bytes": -1.0}, {"output_bytes_per_s": 0.0}, {"num_replicas": 0}],
)
def test_a_stage_that_cannot_be_is_refused(fields):
    with pytest.raises(DovetailError, match=next(iter(fields))):
        PipelineStage(**{"compute_s": 1.0} | fields)


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), [(0, 4), (2, 0)])
def test_a_pipeline_needs_stages_and_micro_batches(num_stages, num_micro_batches):
    with pytest.raises(DovetailError, match=f"{num_stages} stages .* {num_micro_batches} micro-batches"):
        iteration_seconds([stage(1.0)] * num_stages, num_micro_batches=num_micro_batches)
