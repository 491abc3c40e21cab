"""Pipeline formulas against schedules worked out by hand, and played operation by operation."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cost.pipeline import PipelineStage, compute_alone_seconds, cycle_seconds, iteration_seconds
from dovetail.errors import DovetailError
from tests.cost.timetable import play


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


def test_a_slow_stage_computes_while_a_buffered_message_crosses():
    # 10 s beside 4 s and 2 x 3 s on the wire: what was sent has come back before the first stage is done.
    behind = [stage(10.0, output_bytes=3.0, buffered=True), stage(4.0)]
    held = [stage(10.0, output_bytes=3.0), stage(4.0)]

    assert (cycle_seconds(behind), cycle_seconds(held)) == ([10.0, 10.0], [16.0, 10.0])
    assert iteration_seconds(behind, num_micro_batches=5) == 5 * 10 + 4 + 6
    assert iteration_seconds(held, num_micro_batches=5) == 4 * 16 + 10 + 4 + 6


def test_a_slow_stage_behind_a_cut_waits_for_it_buffered_or_not():
    # The next activation leaves when the last gradient has come, so 10 s of work stand between 3 s and 3 s.
    cycles = [cycle_seconds([stage(4.0, output_bytes=3.0, buffered=b), stage(10.0)]) for b in (True, False)]

    assert [max(each) for each in cycles] == [16.0, 16.0]


def test_two_stages_by_hand_on_a_clock():
    # Buffered: the first stage runs F0 0-1 and F1 1-2 while A0 crosses 1-2; F0 B0 behind it 2-4; G0 4-5; B0 5-6.
    # A1 leaves when G0 has come, at 5, arrives at 6, is computed by 8, G1 arrives at 9, B1 ends at 10.
    assert play([1.0, 1.0], [1.0, 1.0], [1.0], [True], 2) == 10.0
    # Held: A0 1-2; F0 B0 2-4; G0 4-5, A1 5-6 hold both; B0 6-7 while F1 B1 6-8; G1 8-9; B1 9-10.
    assert play([1.0, 1.0], [1.0, 1.0], [1.0], [False], 2) == 10.0
    # A slow first stage, 3 + 3 s, three micro-batches. Buffered: F0 0-3, F1 3-6 while A0 is computed and comes back
    # (3-4, 4-6, 6-7); B0 7-10, F2 10-13; G1 came at 11; B1 13-16, G2 comes 14-17: B2 17-20.
    assert play([3.0, 1.0], [3.0, 1.0], [1.0], [True], 3) == 20.0
    # Held: A0 3-4, F1 4-7; G0 7-8, A1 8-9, B0 9-12, F2 12-15; G1 15-16, A2 16-17, B1 17-20; G2 20-21, B2 21-24.
    assert play([3.0, 1.0], [3.0, 1.0], [1.0], [False], 3) == 24.0


@st.composite
def pipelines(draw):
    """Forward, backward and message seconds (whole quarters, so that sums are exact), and which cuts are buffered."""
    num_stages = draw(st.integers(1, 5))
    quarters = st.integers(1, 12).map(lambda number: number / 4)
    passes = [draw(st.lists(quarters, min_size=num_stages, max_size=num_stages)) for _ in range(2)]
    cuts = num_stages - 1
    messages = draw(st.lists(st.integers(0, 8).map(lambda number: number / 4), min_size=cuts, max_size=cuts))
    return *passes, messages, draw(st.lists(st.booleans(), min_size=cuts, max_size=cuts))


@settings(deadline=None)
@given(pipelines())
def test_the_pace_is_that_of_the_timetable_and_the_whole_within_one_pass(pipeline):
    forward_s, backward_s, messages, buffered = pipeline
    stages = [
        stage(forward + backward, output_bytes=message, buffered=held)
        for forward, backward, message, held in zip(
            forward_s, backward_s, [*messages, 0.0], [*buffered, False], strict=True
        )
    ]
    # Quarters differ by a quarter: within some dozens of micro-batches the slowest stage holds up all the others.
    few, many = 150, 200
    played = [play(forward_s, backward_s, messages, buffered, number) for number in (few, many)]
    one_pass_s = sum(forward_s) + sum(backward_s) + 2 * sum(messages)

    assert (played[1] - played[0]) / (many - few) == pytest.approx(max(cycle_seconds(stages)))
    assert abs(iteration_seconds(stages, num_micro_batches=many) - played[1]) <= one_pass_s


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
