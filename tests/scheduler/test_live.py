"""What a driver of real jobs asks: a cluster as it is found, quotas, and a job's own word for its work."""

import numpy as np
import pytest

from dovetail.scheduler.baselines.doubling import Doubling
from dovetail.scheduler.baselines.fifo import Fifo
from dovetail.scheduler.baselines.fixed import Fixed
from dovetail.scheduler.cluster import FoundJob, cluster_as_found
from dovetail.scheduler.default.policy import Dovetail
from dovetail.scheduler.estimate.watching import Watching
from dovetail.scheduler.job_table import job_table
from dovetail.scheduler.pins import WithPins
from dovetail.scheduler.quotas import WithinQuotas
from dovetail.scheduler.view import allocation
from dovetail.simulator.engine import simulate
from dovetail.spec.job import Job, LossCurve
from dovetail.spec.workload import NodeGroup, Workload

WAITS = FoundJob(type=None, workers=0, since_s=0.0, attained=0.0, starts=0)


def table_of(*jobs, workers=8):
    specs = tuple(
        Job(id=f"j{row}", work=1000.0, speed={"cpu": {"1": 1.0, "8": 8.0}}, submit_s=float(row), **facts)
        for row, facts in enumerate(jobs)
    )
    return job_table(Workload(nodes=(NodeGroup(type="cpu", workers=workers),), jobs=specs))


def test_a_cluster_is_found_as_it_is():
    found = [FoundJob(type="cpu", workers=3, since_s=5.0, attained=10.0, starts=2), WAITS]

    cluster = cluster_as_found(table_of({}, {}), found, 9.0, taken={"cpu": 2})

    assert cluster.active.tolist() == [0, 1]
    assert cluster.running.tolist() == [0]
    assert cluster.attained.tolist() == [10.0 + 3 * 4.0, 0.0]
    assert cluster.starts.tolist() == [2, 0]
    assert cluster.capacity.tolist() == [6]
    keep = allocation(np.array([0, 1]), np.array([0, 0]), np.array([3, 3]))
    stops, starts = cluster.changes(keep)
    assert stops == []
    assert [(start.row, start.workers) for start in starts] == [(1, 3)]


@pytest.mark.parametrize(("policy", "others"), [(Dovetail(), 6), (Doubling(), 4), (Fifo(), 6)])
def test_nobody_holds_more_than_the_quota_and_what_is_left_goes_to_others(policy, others):
    table = table_of({}, {}, {})
    cluster = cluster_as_found(table, [WAITS] * 3, 10.0)
    watching = Watching(table)
    for row in range(3):
        watching.estimate_left(row, 0.0)
    users = ["ann", "ann", "bob"]

    wanted = WithinQuotas(policy, users=users, quotas={"ann": 2}).decide(cluster.view(watching), 10.0)

    cluster.changes(wanted)  # it can be done
    held = {"ann": 0, "bob": 0}
    for row, workers in zip(wanted.rows.tolist(), wanted.workers.tolist(), strict=True):
        held[users[row]] += workers
    assert 0 < held["ann"] <= 2
    assert held["bob"] == others


def test_a_job_that_runs_keeps_its_quota_before_one_that_waits():
    table = table_of({}, {})
    found = [WAITS, FoundJob(type="cpu", workers=2, since_s=0.0, attained=0.0, starts=1)]
    cluster = cluster_as_found(table, found, 10.0)
    watching = Watching(table)
    for row in range(2):
        watching.estimate_left(row, 0.0)

    wanted = WithinQuotas(Fifo(), users=["ann", "ann"], quotas={"ann": 2}).decide(cluster.view(watching), 10.0)

    assert (wanted.rows.tolist(), wanted.workers.tolist()) == ([1], [2])


def test_a_jobs_own_word_for_its_work_counts_once_its_speed_is_known():
    table = table_of({"kind": "a"}, {"kind": "b"})
    watching = Watching(table)
    watching.measured_kind("a", 0, 2, 100.0)
    for row in range(2):
        watching.estimate_left(row, 0.0)

    assert watching.told_left(0, 500.0)
    assert not watching.told_left(1, 500.0), "work alone is no time"
    assert watching.left[0] == 500.0
    assert watching.left_error[0] == 0.0
    # Five seconds on the two workers that were measured, up to the hope put into sizes.
    assert watching.left[0] / watching.speed[0, 0, 2] == pytest.approx(5.0, rel=0.1)


def test_what_a_job_has_done_in_its_time_says_how_long_the_rest_takes_before_its_speed_is_measured():
    table = table_of({"kind": "a"}, {"kind": "b"})
    watching = Watching(table)

    assert watching.worked(0, 72_000.0, 36.0)
    assert not watching.worked(1, 0.0, 5.0), "it has only begun"
    for row in range(2):
        watching.estimate_left(row, 0.0)
    assert watching.told_left(0, 28_000.0)
    assert not watching.told_left(1, 500.0)
    assert watching.left[0] / watching.speed[0, 0, 1] == pytest.approx(28_000 / 2_000)
    watching.measured_kind("a", 0, 1, 4_000.0)
    assert not watching.worked(0, 80_000.0, 40.0), "what is measured is known better"
    assert watching.left[0] / watching.speed[0, 0, 1] == pytest.approx(7.0, rel=0.1)


def one_worker(work_s, submit_s, number):
    """Return a job of so many seconds on one worker, which counts its work in thousands and shows its loss."""
    work = 2_000.0 * work_s
    points = tuple((work * share, 1.0 / (0.5 + 4.0 * share)) for share in np.linspace(0.02, 1.0, 50))
    loss = LossCurve(points=points, target=points[-1][1]) if work_s > 1 else None
    return Job(id=f"j{number}", work=work, speed={"cpu": {"1": 2_000.0}}, submit_s=submit_s, loss=loss)


@pytest.mark.parametrize("before", [(), (0.5, 0.5, 0.5)])
def test_a_job_at_three_quarters_is_not_stopped_for_jobs_that_fail_at_once(before):
    """On one worker, an instant is all that the newcomers last; whether jobs like them were there before or not."""
    first = [one_worker(size_s, 0.0, number) for number, size_s in enumerate(before)]
    begins_s = 100.0
    nearly = one_worker(19.0, begins_s, 10)  # it starts for 8 s, and is not measured before 20 s of work
    others = [one_worker(0.1, begins_s + 8.0 + at_s, 11 + number) for number, at_s in enumerate((14.0, 15.0, 16.0))]
    workload = Workload(
        nodes=(NodeGroup(type="cpu", workers=1),), jobs=(*first, nearly, *others), restart_s=8.0, round_s=1.0
    )

    outcome = simulate(workload, Dovetail(), name="dovetail", knowledge="estimated", noise=0.0).outcome

    by_id = {job.id: job for job in outcome.jobs}
    assert by_id["j10"].restarts == 0
    assert by_id["j10"].finish_s == pytest.approx(begins_s + 8.0 + 19.0)


def test_what_other_jobs_of_a_kind_took_says_what_a_new_one_has_left():
    table = table_of({"kind": "a"})
    watching = Watching(table)
    for seconds in (40.0, 40.0, 40.0):
        watching.finished_kind("a", seconds)
    watching.estimate_left(0, 0.0)

    one = float((watching.speed[0, :, 1:] / np.arange(1, watching.speed.shape[2])).max())
    assert watching.left[0] / one == pytest.approx(40.0)


def held(workers):
    return FoundJob(type="cpu", workers=workers, since_s=0.0, attained=0.0, starts=1)


@pytest.mark.parametrize(
    ("policy", "pins", "expected"),
    [
        (Fixed(1), {0: 3}, {0: 3, 1: 4, 2: 1}),  # there is room, and one worker is left for who waits
        (Fixed(1), {0: 4}, {0: 4, 1: 4}),
        (Fixed(1), {0: 5}, {0: 1, 1: 4, 2: 1}),  # it never touches what runs: the job keeps what it has
        (Fixed(1), {0: 3, 1: 1}, {0: 3, 1: 1, 2: 1}),
        (Doubling(), {0: 6}, {0: 6, 1: 1, 2: 1}),  # others shrink
    ],
)
def test_a_size_that_a_user_asked_for_holds_as_soon_as_there_is_room(policy, pins, expected):
    table = table_of({}, {}, {})
    cluster = cluster_as_found(table, [held(1), held(4), WAITS], 10.0)
    watching = Watching(table)
    for row in range(3):
        watching.estimate_left(row, 0.0)

    wanted = WithPins(policy, pins).decide(cluster.view(watching), 10.0)

    cluster.changes(wanted)  # it can be done
    assert dict(zip(wanted.rows.tolist(), wanted.workers.tolist(), strict=True)) == expected


def test_a_job_pinned_to_more_than_its_type_has_is_stopped():
    table = table_of({}, {})
    cluster = cluster_as_found(table, [held(1), held(4)], 10.0, taken={"cpu": 3})
    watching = Watching(table)
    for row in range(2):
        watching.estimate_left(row, 0.0)

    wanted = WithPins(Fixed(1), {0: 6}).decide(cluster.view(watching), 10.0)

    assert wanted.rows.tolist() == [1]
