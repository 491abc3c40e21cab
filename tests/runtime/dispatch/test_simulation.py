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


def unlike(*, in_s=0.01, fixed=0.006, piece=0.004):
    """Return machines that everything costs more by as much as they are slower, as with a part of a core."""
    return [
        Machine(f"w{quota}", 20_000 * quota, fixed_s=in_s + fixed / quota, piece_fixed_s=piece / quota)
        for quota in QUOTAS
    ]


@pytest.mark.parametrize(
    ("batch", "noise", "most_idle", "most_slowness"),
    # A step of 16,384 samples takes 0.57 s and one of 4,096 takes 0.16 s, of which 0.07 s are the slowest one's costs.
    [(16_384, 0.03, 0.025, 1.03), (16_384, 0.1, 0.04, 1.06), (4_096, 0.03, 0.025, 1.03), (4_096, 0.1, 0.07, 1.07)],
)
def test_those_who_pay_more_for_every_task_end_with_the_others(batch, noise, most_idle, most_slowness):
    idle, slowness = settled(unlike, batch=batch, noise=noise)

    assert idle < most_idle
    assert slowness < most_slowness


def test_teams_of_all_kinds_lose_less_with_a_tail_than_without():
    pick = random.Random(11)
    with_tail, without = [], []
    for _ in range(12):
        speeds = [10 ** pick.uniform(3, 5) for _ in range(pick.randint(2, 8))]
        costs = [(pick.uniform(0.0, 0.03), pick.uniform(0.0, 0.005)) for _ in speeds]
        noise = pick.uniform(0.02, 0.2)

        def team(speeds=speeds, costs=costs):
            return [
                Machine(f"w{i}", speed, fixed_s=fixed_s, piece_fixed_s=piece_s)
                for i, (speed, (fixed_s, piece_s)) in enumerate(zip(speeds, costs, strict=True))
            ]

        how = {"steps": 8, "noise": noise, "batch": int(sum(speeds) / 2)}
        with_tail.append(settled(team, **how))
        without.append(settled(team, tail=0, **how))

    assert mean(idle for idle, _ in with_tail) < 0.6 * mean(idle for idle, _ in without)
    assert mean(slowness for _, slowness in with_tail) < mean(slowness for _, slowness in without)


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
