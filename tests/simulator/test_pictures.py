"""What pictures of a schedule show is what happened."""

import itertools
from collections import defaultdict

import pytest

from dovetail.charts.policies import draw_policies, policy_facts
from dovetail.charts.schedule import bands, draw_schedule, schedule_facts
from dovetail.scheduler.registry import make_policy
from dovetail.simulator import simulate
from dovetail.simulator.traces.make import make_workload
from dovetail.simulator.traces.read import parse_nodes
from testbed.pictures import draw_knob


@pytest.fixture(scope="module")
def shared():
    workload = make_workload(num_jobs=25, seed=2, nodes=parse_nodes("v100:4x2,k80:4x1"), with_loss=False)
    return workload, [simulate(workload, make_policy(name), name=name) for name in ("dovetail", "doubling")]


def test_bands_cover_every_worker_second_once(shared):
    workload, (trial, _) = shared
    drawn = bands(workload, trial.changes)

    held = sum(band.num_lanes * (band.end_s - band.start_s) for band in drawn)
    capacity = sum(workload.capacity.values())
    assert held == pytest.approx(trial.outcome.utilization * capacity * trial.outcome.makespan_s)
    by_lane = defaultdict(list)
    for band in drawn:
        for lane in range(band.first_lane, band.first_lane + band.num_lanes):
            by_lane[band.type, lane].append((band.start_s, band.end_s))
    for (type_name, lane), spans in by_lane.items():
        assert lane < workload.capacity[type_name]
        spans.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_every_restart_has_its_dark_edge(shared):
    workload, (trial, _) = shared
    restarts = {(band.job, band.start_s) for band in bands(workload, trial.changes) if band.is_restart}

    assert len(restarts) == trial.outcome.restarts


def test_titles_and_tables_say_the_figures(shared):
    workload, trials = shared

    assert draw_schedule(workload, trials[0]).get_suptitle() == "25 jobs under dovetail"
    assert len(schedule_facts(workload, trials[0]).rows) == 25
    assert draw_policies(workload, trials).get_suptitle() == "Policies side by side"
    assert {row[0] for row in policy_facts(trials).rows} == {"dovetail", "doubling"}
    knob = draw_knob([0.0, 1.0], {"mean JCT": [0.6, 1.1], "makespan": [1.1, 0.9]}, against="doubling", chosen=0.3)
    assert knob.get_suptitle() == "One knob"
