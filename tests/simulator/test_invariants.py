"""Every policy on workloads drawn at random: the events, replayed by the rules alone, break none of them."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.scheduler.registry import POLICIES, make_policy
from dovetail.simulator import simulate
from tests.simulator.makers import check_replay, random_workload


def replay(seed, name, knowledge="oracle"):
    workload = random_workload(seed)
    trial = simulate(workload, make_policy(name), name=name, knowledge=knowledge, seed=seed)
    check_replay(workload, trial)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**9))
@example(seed=27303)  # a job alone, with a next size to try that its type never has
def test_capacity_holds_work_is_conserved_and_no_job_is_in_two_places(name, seed):
    replay(seed, name)


@pytest.mark.parametrize("name", ["dovetail", "optimus", "goodput"])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_the_same_holds_with_estimated_knowledge(name, seed):
    replay(seed, name, knowledge="estimated")


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_legal_on_200_random_workloads(name):
    for seed in range(200):
        replay(seed, name)
