"""What a change of size costs a job that runs."""

import pytest

from dovetail.scheduler.policies.doubling import Doubling
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
