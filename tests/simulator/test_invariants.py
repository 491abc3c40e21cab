"""Every policy on workloads drawn at random: the events, replayed by the rules alone, break none of them."""

import pytest
from hypothesis import given, settings
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
def test_capacity_holds_work_is_conserved_and_no_job_is_in_two_places(name, seed):
    replay(seed, name)


@pytest.mark.parametrize("seed", [27303])
def test_a_size_that_the_cluster_cannot_hold_is_not_tried_and_nobody_waits_for_it(seed):
    # Drawn once: a job that held one worker was to try a size that no type had room for, and never ran again.
    replay(seed, "exploratory")


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
