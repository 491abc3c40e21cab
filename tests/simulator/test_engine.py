"""The engine on cases worked out by hand."""

import numpy as np
import pytest

from dovetail.errors import DovetailError
from dovetail.scheduler.registry import make_policy
from dovetail.scheduler.view import Allocation
from dovetail.simulator import simulate
from dovetail.spec.job import BatchSize
from dovetail.spec.workload import Failure
from testbed.schedules import OnlyInRounds
from tests.simulator.makers import CURVE, check_replay, make_job, make_workload


def run(workload, policy="fifo"):
    chosen = make_policy(policy) if isinstance(policy, str) else policy
    return simulate(workload, chosen, name=str(policy))


class Script:
    """A policy that answers from a list, one entry a decision: {row: (type, workers)}; the last one is repeated."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked_at_s = []

    def decide(self, view, now_s):
        self.asked_at_s.append(now_s)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        chosen = [(row, *answer[row]) for row in answer if row in view.rows]
        columns = np.array(chosen, np.int64).reshape(-1, 3)
        return Allocation(rows=columns[:, 0], types=columns[:, 1], workers=columns[:, 2])


def test_one_job_pays_its_start_and_then_runs_at_its_speed():
    outcome = run(make_workload(make_job())).outcome

    assert outcome.mean_jct_s == outcome.makespan_s == pytest.approx(10 + 1000 / 5.9)
    assert outcome.restarts == 0
    assert outcome.utilization == pytest.approx(8 / 64)


def test_between_two_given_sizes_the_speed_is_interpolated():
    job = make_job(speed={"v100": {"1": 1.0, "4": 4.0}}, min_workers=3, max_workers=3)

    assert run(make_workload(job)).outcome.makespan_s == pytest.approx(10 + 1000 / 3)


def test_a_resize_keeps_the_work_and_pays_the_restart_with_the_workers_held():
    # 10 s start, 90 s at speed 1: 90 done. Then 10 s on 8 workers for nothing, then 910 at 5.9.
    other = make_job("b", submit_s=100.0, work=1.0)
    script = Script({0: (0, 1)}, {0: (0, 8), 1: (0, 1)})
    trial = run(make_workload(make_job(), other), script)

    first = trial.outcome.jobs[0]
    assert first.finish_s == pytest.approx(100 + 10 + 910 / 5.9)
    assert first.restarts == 1
    assert [(c.t_s, c.workers) for c in trial.changes if c.job == "a"] == [
        (0.0, 1),
        (100.0, 0),
        (100.0, 8),
        (pytest.approx(first.finish_s), 0),
    ]
    held = 100 * 1 + (first.finish_s - 100) * 8 + 11 * 1
    assert trial.outcome.utilization == pytest.approx(held / 64 / trial.outcome.makespan_s)


def test_a_job_has_its_own_restart_and_the_others_the_workloads():
    jobs = (make_job("a", restart_s=0.0), make_job("b"))

    finishes = [job.finish_s for job in run(make_workload(*jobs, restart_s=30.0)).outcome.jobs]

    assert finishes == pytest.approx([1000 / 5.9, 30 + 1000 / 5.9])


def test_decisions_come_at_arrivals_completions_and_rounds_and_at_no_other_time():
    script = Script({0: (0, 1), 1: (0, 1)})
    jobs = (make_job("a", work=90.0), make_job("b", submit_s=25.0, work=10.0))
    run(make_workload(*jobs, round_s=40.0), script)

    assert script.asked_at_s == pytest.approx([0.0, 25.0, 40.0, 45.0, 80.0])  # a ends at 100, with nobody left


def test_percentiles_and_makespan_are_from_submission():
    jobs = [make_job(str(number), submit_s=500.0, work=float(number), restart_s=0.0) for number in range(1, 6)]
    outcome = run(make_workload(*jobs), "fixed-1").outcome

    assert outcome.mean_jct_s == pytest.approx(3.0)
    assert outcome.p50_jct_s == pytest.approx(3.0)
    assert outcome.p99_jct_s == pytest.approx(4.96)
    assert outcome.makespan_s == pytest.approx(5.0)


def test_the_same_run_twice_is_the_same():
    workload = make_workload(*(make_job(str(n), submit_s=7.0 * n, work=50.0 + n) for n in range(30)))

    for knowledge in ("oracle", "estimated"):
        first, second = (
            simulate(workload, make_policy("dovetail"), name="x", knowledge=knowledge, seed=3) for _ in range(2)
        )
        assert first == second


def test_work_kept_waiting_for_ever_is_an_error_and_not_a_loop():
    with pytest.raises(DovetailError, match="wait for ever"):
        run(make_workload(make_job()), Script({}))


@pytest.mark.parametrize("answer", [{0: (0, 65)}, {0: (0, 9)}])
def test_an_allocation_that_cannot_be_is_the_policys_mistake(answer):
    with pytest.raises(DovetailError, match="the policy"):
        run(make_workload(make_job()), Script(answer))


def test_a_failed_node_stops_its_job_which_keeps_its_work_and_starts_elsewhere():
    # One node of four and one of one: the job runs on the first, which is the one that fails at 60 s.
    job = make_job(work=100.0, speed={"v100": {"1": 1.0}})
    workload = make_workload(
        job, nodes=(("v100", 1, 2),), failures=(Failure(t_s=60.0, type="v100", nodes=2, down_s=40.0),)
    )
    trial = run(workload)

    # 50 done by 60 s; nothing until 100 s; then 10 s restart and 50 more.
    assert trial.outcome.jobs[0].finish_s == pytest.approx(160.0)
    assert trial.outcome.jobs[0].restarts == 1
    check_replay(workload, trial)


def test_only_the_job_on_the_failed_node_stops():
    jobs = (make_job("a", speed={"v100": {"1": 1.0}}), make_job("b", speed={"v100": {"1": 1.0}}))
    workload = make_workload(*jobs, nodes=(("v100", 1, 2),), failures=(Failure(t_s=60.0, type="v100", down_s=1e6),))

    restarts = {job.id: job.restarts for job in run(workload).outcome.jobs}

    assert sorted(restarts.values()) == [0, 1]


def test_spread_placements_cost_only_where_a_job_says_so():
    # Two jobs of two leave one worker on each node of three; the third job has to stand on both.
    pairs = [make_job(name, speed={"v100": {"2": 1.0}}, work=500.0) for name in ("x", "y")]
    for spread_speed, seconds in ((None, 100.0), (0.5, 200.0)):
        wide = make_job("w", submit_s=1.0, work=200.0, speed={"v100": {"2": 2.0}}, spread_speed=spread_speed)
        workload = make_workload(*pairs, wide, nodes=(("v100", 3, 2),), restart_s=0.0)
        assert run(workload).outcome.jobs[-1].finish_s - 1.0 == pytest.approx(seconds)


def test_rounds_only_keep_everything_as_it_is_between_them():
    jobs = (make_job("a", work=100.0), make_job("b", submit_s=50.0, work=100.0))
    workload = make_workload(*jobs, nodes=(("v100", 8, 2),), round_s=360.0)
    trial = simulate(workload, OnlyInRounds(make_policy("fifo"), round_s=360.0), name="x")

    assert trial.outcome.jobs[1].start_s == 360.0


def test_jobs_come_out_in_the_order_of_the_file():
    jobs = (make_job("late", submit_s=100.0), make_job("early", submit_s=0.0))

    assert [job.id for job in run(make_workload(*jobs)).outcome.jobs] == ["late", "early"]


def test_a_larger_batch_is_told_in_the_events():
    faster = {"efficiency": 0.9, "speed": {"v100": {"1": 2.0, "8": 9.0}}}
    job = make_job(efficiency={"512": BatchSize(**faster)})
    trial = run(make_workload(job), "goodput")

    assert trial.changes[0].batch == 512
    assert trial.outcome.makespan_s == pytest.approx(10 + 1000 / (0.9 * 9.0))
    assert CURVE["8"] < 0.9 * 9.0
