"""The speed function, learning rates on resize, and a global batch that stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cost.speed import (
    SpeedModel,
    four_term_steps_per_s,
    keep_global_batch,
    ramped_learning_rate,
    scaled_learning_rate,
)
from dovetail.errors import DovetailError

MODEL = SpeedModel(
    batch=256,
    sample_s=0.01,
    payload_bytes=1e8,
    inside_byte_s=1e-10,
    between_byte_s=1e-9,
    latency_s=1e-5,
    fixed_s=0.02,
    node_workers=4,
    algorithm="ring",
)


def test_one_worker_computes_the_whole_batch():
    assert MODEL.step_seconds(1) == pytest.approx(256 * 0.01 + 0.02)


def test_eight_workers_share_the_batch_and_sum_between_nodes():
    # 32 samples each; a ring of 8 between nodes: 14 messages and 2 * 7/8 of 1e8 bytes.
    assert MODEL.step_seconds(8) == pytest.approx(0.32 + 14e-5 + 0.175 + 0.02)


def test_the_first_worker_on_a_second_node_can_make_a_job_slower():
    tight = SpeedModel(batch=64, sample_s=0.01, payload_bytes=1e9, inside_byte_s=1e-11, between_byte_s=1e-9)

    assert tight.steps_per_s(5) < tight.steps_per_s(4)


def test_the_ring_model_has_the_four_term_form():
    inside = SpeedModel(
        batch=240, sample_s=0.01, payload_bytes=1e8, inside_byte_s=1e-10, between_byte_s=1e-10, latency_s=1e-5,
        fixed_s=0.02, algorithm="ring",
    )  # fmt: skip
    for workers in (1, 2, 3, 4, 6, 8):
        terms = four_term_steps_per_s(workers, batch=240, size=1e8, t0=0.01, t1=2e-5, t2=2e-10, t3=0.02)
        assert inside.steps_per_s(workers) == pytest.approx(terms)


def test_a_table_is_what_workload_files_hold():
    assert MODEL.table((1, 4)) == {"1": MODEL.steps_per_s(1), "4": MODEL.steps_per_s(4)}


@pytest.mark.parametrize(("rule", "rate"), [("linear", 0.4), ("square-root", 0.2), ("none", 0.1)])
def test_four_times_the_batch_scales_the_rate_by_its_rule(rule, rate):
    assert scaled_learning_rate(0.1, batch_before=64, batch_after=256, rule=rule) == pytest.approx(rate)


def test_a_batch_that_stays_keeps_the_rate_under_every_rule():
    for rule in ("linear", "square-root", "none"):
        assert scaled_learning_rate(0.1, batch_before=64, batch_after=64, rule=rule) == 0.1


def test_a_new_rate_is_reached_in_a_straight_line():
    rates = [ramped_learning_rate(0.1, 0.3, step=step, ramp_steps=4) for step in range(6)]

    assert rates == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3, 0.3])


@given(st.integers(1, 64), st.integers(0, 5000), st.integers(1, 100))
def test_shares_add_up_to_the_batch_and_fit_the_memory(num_workers, extra, most):
    batch = num_workers + extra

    kept = keep_global_batch(batch, num_workers=num_workers, max_worker_batch=most)

    assert sum(kept.per_worker) == batch
    assert max(kept.per_worker) - min(kept.per_worker) <= 1
    assert max(kept.per_worker) <= kept.passes * most
    assert kept.passes == 1 or max(kept.per_worker) > (kept.passes - 1) * most


def test_more_workers_than_samples_are_refused():
    with pytest.raises(DovetailError, match="cannot be shared"):
        keep_global_batch(3, num_workers=4)
