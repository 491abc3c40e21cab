"""Short runs of models that really are slow in some steps: what is measured is what they come to."""

from __future__ import annotations

import msgspec
import pytest

from dovetail.orchestrate.run_files import model_run
from dovetail.orchestrate.short_runs import short_run
from dovetail.runtime.planned.layouts import in_one_process

SLEEPY = "tests.orchestrate.slow_models:sleepy"
BATCH = 16


def slept(**options) -> object:
    run = model_run(SLEEPY, model_options=options, data="clicks", data_options={}, samples=3_200, batch=BATCH, seed=0)
    return in_one_process(run, device="cpu", threads=1)


def test_a_model_that_is_slow_in_its_first_steps_is_seen_once_it_is_quick():
    # 15 steps of 0.1 s would fill most of the second that it is looked at.
    found = short_run(slept(slow_steps=15, slow_s=0.1, quick_s=0.01), BATCH, seconds=1.0, limit_s=60.0)

    assert found is not None
    assert found.holds
    assert 0.01 <= found.seconds_per_batch < 0.04
    assert found.error < 0.5


def test_slow_steps_that_come_back_are_part_of_what_is_measured():
    # 8 of 28 steps sleep 0.06 s: (8 * 0.06 + 20 * 0.01) / 28 = 0.024 s and a little computing.
    options = {"slow_steps": 8, "every": 28, "slow_s": 0.06, "quick_s": 0.01}
    found = short_run(slept(**options), BATCH, seconds=3.0, limit_s=60.0)

    assert found is not None
    assert 0.018 < found.seconds_per_batch < 0.05  # the middle step alone sleeps 0.01


def test_a_run_that_is_cut_off_in_its_warm_up_says_that_its_pace_does_not_hold():
    found = short_run(slept(slow_steps=10_000, slow_s=0.2), BATCH, seconds=1.0, limit_s=1.6)

    assert found is not None
    assert not found.holds
    assert found.error == 1.0


@pytest.mark.slow
@pytest.mark.processes  # the compiler's own
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_compiles_is_seen_once_it_is_compiled():
    options = {"hidden": [8, 4], "width": 4, "num_rows": 26_000}
    run = model_run("ctr-dnn", model_options=options, data="clicks", data_options={}, samples=20_000, batch=500, seed=0)
    compiled = msgspec.structs.replace(run, training=msgspec.structs.replace(run.training, compile=True))
    first, second = (
        short_run(in_one_process(each, device="cpu", threads=1), 500, seconds=1.0, limit_s=120.0)
        for each in (compiled, compiled)
    )

    assert first is not None
    assert second is not None
    assert first.holds
    assert second.holds
    assert first.seconds_per_batch < 0.5  # to compile takes seconds
