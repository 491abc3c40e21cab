"""The engine against closed forms of queueing theory, within statistical error."""

import random

import numpy as np
import pytest

from dovetail.scheduler.registry import make_policy
from dovetail.scheduler.view import Allocation
from dovetail.simulator import simulate
from tests.simulator.makers import make_job, make_workload

MEANS_OF = 20
"""The run is cut into so many batches, whose means give the statistical error."""


ONE = {"v100": {"1": 1.0}}


def exponential(draw):
    return draw.expovariate(1.0)


def mean_and_error(times):
    """Return the mean and its standard error by batch means, the first tenth left out."""
    kept = np.array(times[len(times) // 10 :])
    means = np.array([batch.mean() for batch in np.array_split(kept, MEANS_OF)])
    return kept.mean(), means.std(ddof=1) / np.sqrt(MEANS_OF)


def poisson_jobs(count, *, load, size_of, speed, seed):
    draw = random.Random(seed)
    now_s, jobs = 0.0, []
    for number in range(count):
        now_s += draw.expovariate(load)
        jobs.append(make_job(str(number), submit_s=now_s, work=size_of(draw), speed=speed))
    return jobs


def completion_times(workload, policy):
    trial = simulate(workload, policy, name="x")
    submits = {job.id: job.submit_s for job in workload.jobs}
    return [job.finish_s - submits[job.id] for job in trial.outcome.jobs]


def test_one_server_first_in_first_out_is_m_m_1():
    # Arrivals at 0.5, service at 1: the mean time in the system is 1 / (1 - 0.5).
    jobs = poisson_jobs(12_000, load=0.5, size_of=exponential, speed=ONE, seed=1)
    workload = make_workload(*jobs, nodes=(("v100", 1, 1),), restart_s=0.0)

    mean, error = mean_and_error(completion_times(workload, make_policy("fifo")))

    assert mean == pytest.approx(2.0, abs=4 * error)
    assert error < 0.15


def test_a_start_adds_to_every_service():
    # Service is 0.2 + exponential(1): M/G/1 (Pollaczek-Khinchine), W = S + load E[S^2] / (2 (1 - rho)).
    jobs = poisson_jobs(12_000, load=0.4, size_of=exponential, speed=ONE, seed=2)
    workload = make_workload(*jobs, nodes=(("v100", 1, 1),), restart_s=0.2)
    service, second = 1.2, 0.2**2 + 2 * 0.2 + 2.0
    expected = service + 0.4 * second / (2 * (1 - 0.4 * service))

    mean, error = mean_and_error(completion_times(workload, make_policy("fifo")))

    assert mean == pytest.approx(expected, abs=4 * error)


class EqualShares:
    """Split one type's workers as evenly as whole workers go; the first of the queue get the odd ones."""

    def decide(self, view, now_s):
        del now_s
        rows = view.rows[: int(view.capacity[0])]
        share, odd = divmod(int(view.capacity[0]), len(rows))
        workers = np.full(len(rows), share)
        workers[:odd] += 1
        return Allocation(rows=rows, types=np.zeros(len(rows), np.int64), workers=workers)


def test_equal_shares_with_linear_speed_up_are_processor_sharing():
    # Processor sharing: 1 / (1 - rho) whatever the sizes; here two kinds, of mean 1 together.
    workers = 120
    linear = {"v100": {"1": 1.0 / workers, str(workers): 1.0}}
    jobs = poisson_jobs(6_000, load=0.6, size_of=lambda draw: draw.choice([0.2, 1.8]), speed=linear, seed=3)
    workload = make_workload(*jobs, nodes=(("v100", workers, 1),), restart_s=0.0)

    mean, error = mean_and_error(completion_times(workload, EqualShares()))

    assert mean == pytest.approx(1 / (1 - 0.6), abs=4 * error)
    assert error < 0.25
