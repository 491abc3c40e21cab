"""The speed function."""

import pytest

from dovetail.cost.speed import SpeedModel

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
        hops = workers - 1
        step_s = 0.01 * 240 / workers + 2e-5 * hops + 2e-10 * hops * 1e8 / workers + 0.02
        assert inside.step_seconds(workers) == pytest.approx(step_s)


def test_a_table_is_what_workload_files_hold():
    assert MODEL.table((1, 4)) == {"1": MODEL.steps_per_s(1), "4": MODEL.steps_per_s(4)}
