"""Unlike workers in virtual time: do they finish together, and how soon after a change?"""

import random

import pytest

from dovetail.runtime.dispatch import first_guess
from tests.runtime.dispatch.simulation import Cluster, Machine

QUOTAS = (0.8, 0.4, 0.2, 0.1)
SEEDS = range(10)


def quotas(**costs):
    """Return machines with these parts of a core; a core does 20,000 samples/s."""
    return [Machine(f"w{quota}", 20_000 * quota, **costs) for quota in QUOTAS]


def mean(numbers):
    numbers = list(numbers)
    return sum(numbers) / len(numbers)


def settled(make=quotas, *, after=3, steps=20, **how):
    """Return the mean idle time, and the mean time relative to the best, of the steps after the first few."""
    idle, slowness = [], []
    for seed in SEEDS:
        cluster = Cluster(make(), seed=seed, **how)
        run = [cluster.step() for _ in range(after + steps)][after:]
        idle.append(mean(step.idle for step in run))
        slowness.append(mean(step.seconds for step in run) / cluster.best_s())
    return mean(idle), mean(slowness)


def steps_to_follow(change, *, within=0.05, warm_up=10):
    """Return how many steps after a change idle more than `within` on average over the seeds, the last one counted."""
    clusters = [Cluster(quotas(), seed=seed) for seed in SEEDS]
    for cluster in clusters:
        for _ in range(warm_up):
            cluster.step()
        change(cluster)
    idle = [mean(cluster.step().idle for cluster in clusters) for _ in range(8)]
    return max((number for number, part in enumerate(idle, 1) if part > within), default=0)


def test_with_the_tail_workers_idle_less_than_two_percent():
    idle, slowness = settled(noise=0.1)

    assert idle < 0.02
    assert slowness < 1.04


def test_without_the_tail_they_idle_three_times_as_long():
    assert settled(noise=0.1, tail=0)[0] > 3 * settled(noise=0.1)[0]


def test_without_noise_hardly_anything_is_lost():
    idle, slowness = settled(noise=0.0)

    assert idle < 0.01
    assert slowness < 1.01


@pytest.mark.parametrize(
    "costs",
    [{"fixed_s": 0.1}, {"fixed_s": 0.0, "piece_fixed_s": 0.0}, {"piece_fixed_s": 0.02}, {"piece_fixed_s": 0.1}],
    ids=str,
)
@pytest.mark.parametrize("noise", [0.03, 0.1, 0.2])
def test_a_tail_costs_at_most_a_percent_whatever_pieces_cost(noise, costs):
    with_tail = settled(lambda: quotas(**costs), noise=noise, steps=12)[1]
    without = settled(lambda: quotas(**costs), noise=noise, tail=0, steps=12)[1]

    assert with_tail < without + 0.01


def test_the_first_step_goes_to_those_who_turn_out_to_be_fast():
    for seed in SEEDS:
        cluster = Cluster(quotas(), seed=seed)
        # Equal shares take 3.75 times as long as the best.
        assert cluster.step().seconds < 1.3 * cluster.best_s()


@pytest.mark.parametrize(("name", "factor"), [("w0.8", 0.25), ("w0.8", 0.5), ("w0.1", 8), ("w0.4", 2), ("w0.1", 0.25)])
def test_a_changed_quota_is_followed_after_the_step_that_shows_it(name, factor):
    def change(cluster):
        cluster.machines[name].samples_per_s *= factor

    assert steps_to_follow(change) <= 1


def test_changed_fixed_costs_are_followed_within_three_steps():
    def change(cluster):
        cluster.machines["w0.8"].fixed_s = 0.3

    assert steps_to_follow(change) <= 3


def test_a_worker_that_joins_has_its_share_in_the_next_step():
    def change(cluster):
        known = [(machine.speed, quota) for machine, quota in zip(cluster.machines.values(), QUOTAS, strict=True)]
        guess = first_guess(0.8, known)
        assert guess == pytest.approx(16_000, rel=0.1)
        cluster.machines["new"] = Machine("new", 16_000.0, guess=guess)

    assert steps_to_follow(change) <= 1


def test_a_worker_that_leaves_is_made_up_for_in_the_same_step():
    for seed in SEEDS:
        cluster = Cluster(quotas(), seed=seed)
        for _ in range(5):
            cluster.step()
        step = cluster.step(leaver="w0.4")

        assert step.samples == cluster.batch
        assert set(cluster.machines) == {"w0.8", "w0.2", "w0.1"}
        # The three do all of it in best_s; what the fourth did in half a task is lost.
        assert step.seconds < 1.1 * cluster.best_s()
        assert cluster.step().idle < 0.1


def test_one_stalled_task_costs_no_share_in_the_next_steps():
    cluster = Cluster(quotas(), noise=0.02)
    before = [cluster.step() for _ in range(8)][-1]
    cluster.stalls["w0.8"] = 3.0
    cluster.step()
    after = [cluster.step() for _ in range(3)]

    assert after[0].idle < 0.05
    assert after[0].seconds < 1.1 * before.seconds
    assert cluster.machines["w0.8"].speed.samples_per_s == pytest.approx(16_000, rel=0.1)


def test_any_team_finishes_every_batch_exactly():
    pick = random.Random(5)
    for seed in range(60):
        team = [
            Machine(str(i), 10 ** pick.uniform(1, 6), fixed_s=pick.uniform(0, 0.5), piece_fixed_s=pick.uniform(0, 0.1))
            for i in range(pick.randint(1, 9))
        ]
        cluster = Cluster(team, batch=pick.randint(1, 50_000), noise=0.5, seed=seed)
        assert all(cluster.step().samples == cluster.batch for _ in range(6))
