"""What a change of size costs a job that runs."""

import pytest

from dovetail.scheduler.baselines.doubling import Doubling
from dovetail.simulator.engine import simulate
from dovetail.spec.job import Job
from dovetail.spec.workload import NodeGroup, Workload


def two_jobs(**times):
    speed = {"cpu": {"1": 1.0, "2": 2.0}}
    jobs = (Job(id="a", work=10.0, speed=speed), Job(id="b", work=30.0, speed=speed))
    return Workload(nodes=(NodeGroup(type="cpu", workers=2),), jobs=jobs, restart_s=5.0, **times)


@pytest.mark.parametrize(("times", "finish_s"), [({}, 30.0), ({"resize_s": 1.0}, 26.0), ({"resize_s": 0.0}, 25.0)])
def test_a_job_that_gets_more_workers_pays_for_a_resize_where_that_is_given_else_for_a_start(times, finish_s):
    # Both start at 0 and work from 5 on; `a` is done at 15. `b` has 20 left, and 2 workers do them in 10 s.
    trial = simulate(two_jobs(**times), Doubling(), name="doubling")

    assert [job.finish_s for job in trial.outcome.jobs] == pytest.approx([15.0, finish_s])


@pytest.mark.parametrize(("times", "finish_s"), [({}, 28.0), ({"resize_s": 1.0}, 26.0), ({"resize_s": 0.0}, 25.0)])
def test_a_job_that_is_resized_while_it_starts_has_the_rest_of_its_start_to_get_through(times, finish_s):
    # `a` has both workers from 0 on, and one of them from 3 on, when `b` comes. It would have worked from 5 on; with
    # the resize after that, or from 8 on where a change of size is a start. 20 units of work on one worker.
    speed = {"cpu": {"1": 1.0, "2": 2.0}}
    jobs = (
        Job(id="a", work=20.0, speed=speed),
        Job(id="b", work=100.0, speed={"cpu": {"1": 1.0}}, submit_s=3.0),
    )
    workload = Workload(nodes=(NodeGroup(type="cpu", workers=2),), jobs=jobs, restart_s=5.0, **times)
    trial = simulate(workload, Doubling(), name="doubling")

    assert [(change.t_s, change.workers) for change in trial.changes if change.job == "a"][:3] == [
        (0, 2),
        (3, 0),
        (3, 1),
    ]
    assert trial.outcome.jobs[0].finish_s == pytest.approx(finish_s)


def test_a_resize_that_takes_longer_than_a_start_is_paid_in_full():
    # As above, `b` gets a second worker at 15, and works with two from 22 on.
    trial = simulate(two_jobs(resize_s=7.0), Doubling(), name="doubling")

    assert trial.outcome.jobs[1].finish_s == pytest.approx(32.0)
