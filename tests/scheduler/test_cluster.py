"""Who holds what, as any driver of a policy tells it: by hand, without a simulator."""

import re

import numpy as np
import pytest

from dovetail.errors import DovetailError
from dovetail.scheduler.cluster import Cluster, JobStart
from dovetail.scheduler.estimate.watching import Watching
from dovetail.scheduler.job_table import job_table
from dovetail.scheduler.registry import make_policy
from dovetail.scheduler.view import Allocation
from tests.simulator.makers import make_job, make_workload


def two_jobs():
    table = job_table(make_workload(make_job("a"), make_job("b", submit_s=5.0), nodes=(("v100", 4, 2),)))
    cluster = Cluster(table)
    cluster.arrive(0)
    cluster.arrive(1)
    return cluster


def wanted(*entries):
    columns = np.array(entries, np.int64).reshape(-1, 3)
    return Allocation(rows=columns[:, 0], types=columns[:, 1], workers=columns[:, 2])


def test_an_allocation_stops_what_it_leaves_out_and_starts_what_it_changes():
    cluster = two_jobs()
    cluster.hold(JobStart(row=0, kind=0, workers=4, batch=-1), 10.0)

    assert cluster.changes(wanted((0, 0, 4))) == ([], [])
    assert cluster.changes(wanted((1, 0, 8))) == ([0], [JobStart(row=1, kind=0, workers=8, batch=-1)])


def test_what_was_held_is_counted_in_worker_seconds_over_all_starts():
    cluster = two_jobs()
    cluster.hold(JobStart(row=0, kind=0, workers=4, batch=-1), 10.0)
    cluster.advance(20.0)
    cluster.let_go(0, 20.0)
    cluster.hold(JobStart(row=0, kind=0, workers=2, batch=-1), 30.0)
    cluster.advance(35.0)

    assert cluster.attained.tolist() == [50.0, 0.0]
    assert cluster.starts.tolist() == [2, 0]


def test_more_workers_than_there_are_is_refused():
    with pytest.raises(DovetailError, match="gave out 16 of the 8 workers of `v100`"):
        two_jobs().changes(wanted((0, 0, 8), (1, 0, 8)))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ((0, 7, 1), "names a type that there is not: types are 0 (v100)"),
        ((0, -1, 1), "names a type that there is not"),
        ((9, 0, 1), "rows are those of `view.rows`"),
        ((0, 0, 0), "gave 0 workers of `v100` to job `"),
    ],
)
def test_what_a_policy_did_wrong_is_said_in_names(given, complaint):
    with pytest.raises(DovetailError, match=re.escape(complaint)) as caught:
        two_jobs().changes(wanted(given))

    assert "a mistake in the policy" in caught.value.hint


def test_a_driver_without_virtual_time_can_ask_a_policy():
    cluster = two_jobs()
    watching = Watching(cluster.table)
    watching.measured(0, 0, 1, 2.0)
    for row in cluster.active.tolist():
        watching.estimate_left(row, 0.0)

    found = make_policy("dovetail").decide(cluster.view(watching), 5.0)
    _, starts = cluster.changes(found)

    assert {start.row for start in starts} <= {0, 1}
    assert sum(start.workers for start in starts) == 8
