"""Costates against closed forms and exhaustive search, and what the policy makes of them."""

import random

import numpy as np
import pytest

from dovetail.scheduler.default.costates import costates, last_first, priced_costates
from dovetail.scheduler.default.offers import is_sensible, offers_of
from dovetail.scheduler.default.policy import Dovetail
from dovetail.scheduler.default.values import change_values
from dovetail.simulator import simulate
from tests.scheduler.exhaustive import least_sum_of_completions
from tests.scheduler.makers import CURVE, make_view, sizes
from tests.simulator.makers import make_job, make_workload


def worth_of(curves, left, capacity, by=costates, weights=None):
    """Return the costates of jobs that wait, without restarts."""
    view = make_view(curves, capacity=(capacity,), left=left)
    offers = offers_of(view, all_sizes=True)
    order = last_first(np.array(left) / offers.most(offers.speeds), np.zeros(len(left)))
    counts = np.ones(len(left)) if weights is None else np.array(weights, float)
    return by(order, offers.first, offers.types, offers.workers, offers.speeds, counts, view.capacity)


def test_on_one_worker_a_unit_of_work_delays_itself_and_all_that_come_later():
    # Shortest first: the job done first delays three, the last only itself.
    assert worth_of([{1: 1.0}, {1: 2.0}, {1: 1.0}], [5.0, 40.0, 10.0], 1) == pytest.approx([3.0, 0.5, 2.0])


def test_weights_count_in_place_of_jobs():
    assert worth_of([{1: 1.0}] * 2, [5.0, 10.0], 1, weights=[2.0, 0.5]) == pytest.approx([2.5, 0.5])


def test_two_jobs_share_as_in_hesrpt():
    # heSRPT: with n jobs and speed-ups w^q, V = sum of left_k k^(1/(1-q))-differences to the power 1 - q. For q = 1/2:
    # p_k = sqrt(k^2 - (k-1)^2) / sqrt(C) = sqrt(2k - 1) / sqrt(C), k counted from the last.
    workers = 4000
    curve = {size: size**0.5 for size in range(1, workers + 1)}
    found = worth_of([curve, curve], [100.0, 200.0], workers)

    assert found * workers**0.5 == pytest.approx([3**0.5, 1.0], rel=1e-3)


def test_priced_costates_follow_the_table_on_a_large_cluster():
    draw = np.random.default_rng(3)
    curves = [{size: size**q for size in range(1, 17)} for q in draw.uniform(0.4, 0.95, 120)]
    left = draw.lognormal(5.0, 1.5, 120)

    by_table, by_price = (worth_of(curves, left, 256, by) for by in (costates, priced_costates))

    assert np.abs(np.log(by_price / by_table)).mean() < 0.05


def random_case(seed, *, count, capacity):
    """Return curves of some kind, bent down or with steps up and down, and the work of each job."""
    draw = random.Random(seed)
    curves = []
    for _ in range(count):
        shape = draw.choice(["power", "amdahl", "steps"])
        power, serial = draw.uniform(0.3, 1.0), draw.uniform(0.02, 0.4)
        pace, speed = draw.uniform(0.5, 3.0), 1.0
        curve = {}
        for size in range(1, capacity + 1):
            if shape == "power":
                speed = size**power
            elif shape == "amdahl":
                speed = 1 / (serial + (1 - serial) / size)
            curve[size] = pace * speed
            speed += draw.choice([-0.1, 0.2, 0.6, 1.0])
        curves.append(curve)
    return curves, [draw.lognormvariate(5.0, 1.0) for _ in range(count)]


@pytest.mark.parametrize(("count", "capacity"), [(2, 8), (3, 4), (3, 6), (4, 4)])
def test_the_sum_of_completion_times_is_within_one_percent_of_the_exhaustive_optimum(count, capacity):
    for seed in range(12):
        curves, left = random_case(seed, count=count, capacity=capacity)
        jobs = [
            make_job(str(number), work=work, speed={"v100": {str(size): speed for size, speed in curve.items()}})
            for number, (curve, work) in enumerate(zip(curves, left, strict=True))
        ]
        workload = make_workload(*jobs, nodes=(("v100", capacity, 1),), restart_s=0.0)

        found = simulate(workload, Dovetail(knob=0.0), name="x").outcome.mean_jct_s * count

        least = least_sum_of_completions(curves, left, capacity)
        assert least * (1 - 1e-6) <= found <= 1.01 * least, seed


def values_of(*, held, left=1000.0, restart_s=40.0, resize_s=None, next_end_s=90.0, types=(0, 0, 0)):
    """Return the values of sizes 1, 2 and 4 (speeds 1, 1.9, 3.4) of one job whose costate is 1."""
    found = change_values(
        np.array([0, 3]),
        np.array(types),
        np.array([1.0, 1.9, 3.4]),
        np.array([held]),
        np.ones(1),
        np.array([left]),
        np.array([restart_s]),
        np.array([restart_s if resize_s is None else resize_s]),
        next_end_s,
    )
    return found.tolist()


def test_a_change_pays_its_restart_within_the_root_of_restart_and_next_end():
    # H = sqrt(40 * 90) = 60: a change keeps 60 / 100 of its speed; stopping owes 1.9 * 40 / 100.
    owed = 1.9 * 0.4

    assert values_of(held=1) == pytest.approx([0.6, 1.9 + owed, 0.6 * 3.4 + owed])


def test_a_job_that_waits_counts_its_start_over_all_it_has_left():
    assert values_of(held=-1) == pytest.approx([1000 / 1040, 1000 / (40 + 1000 / 1.9), 1000 / (40 + 1000 / 3.4)])


def test_a_change_has_no_longer_than_the_job_still_runs():
    # On 4 workers 34 units take 10 s: 10 / 50 of the speed is left.
    assert values_of(held=1, left=34.0)[2] == pytest.approx(0.2 * 3.4 + 1.9 * 40 / (34 / 1.9 + 40))


def test_other_workers_of_its_type_cost_a_running_job_a_resize_and_stopping_it_a_start():
    # H(10) = sqrt(10 * 90) = 30: a resize keeps 30 / 40 of the speed; stopping still owes 1.9 * 40 / 100.
    owed, owed_for_a_resize = 1.9 * 0.4, 1.9 * 0.25

    found = values_of(held=1, resize_s=10.0)

    assert found == pytest.approx([0.75 + owed - owed_for_a_resize, 1.9 + owed, 0.75 * 3.4 + owed])
    assert values_of(held=1, resize_s=10.0, types=(1, 0, 1)) == pytest.approx(values_of(held=1)), "of another type"


def test_without_a_restart_changes_are_free():
    assert values_of(held=1, restart_s=0.0) == pytest.approx([1.0, 1.9, 3.4])


def test_sensible_sizes_are_powers_of_two_whole_nodes_and_the_ends():
    assert [size for size in range(3, 14) if is_sensible(size, 6, 3, 13)] == [3, 4, 6, 8, 12, 13]


def test_an_offer_no_faster_than_a_smaller_one_is_left_out_unless_it_is_held():
    curve = {1: 1.0, 2: 1.9, 4: 3.4, 6: 3.0}

    assert offers_of(make_view([curve]), all_sizes=True).workers.tolist() == [1, 2, 3, 4]
    assert offers_of(make_view([curve], held=[(0, 6)]), all_sizes=True).workers.tolist() == [1, 2, 3, 4, 6]


def test_useful_speed_is_that_of_the_best_batch_size():
    view = make_view([CURVE])
    larger = np.where(np.arange(9) >= 4, 1.5, 0.5) * view.speed
    view = type(view)(**{name: getattr(view, name) for name in view.__slots__} | {"batch_speed": (larger,)})

    offers = offers_of(view, all_sizes=False)
    found = Dovetail(knob=0.0).decide(view, 0.0)

    assert offers.batches.tolist() == [-1, -1, 0, 0]
    assert offers.speeds.tolist() == pytest.approx([1.0, 1.9, 1.5 * 3.4, 1.5 * 5.9])
    assert sizes(found, 1) == [8]
    assert found.batches.tolist() == [0]
