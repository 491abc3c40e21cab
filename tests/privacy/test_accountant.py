"""What private steps cost, against Opacus, closed forms, and the accountants asked forwards."""

import math

import pytest
from scipy import stats

from dovetail.errors import DovetailError
from dovetail.privacy.accountant import SpentSteps, epsilon_of, noise_for, steps_within

SETTINGS = [
    (0.01, 1.0, 1_000, 1e-5),
    (0.001, 0.7, 5_000, 1e-6),
    (0.05, 2.0, 400, 1e-5),
    (0.3, 5.0, 200, 1e-5),
    (0.004, 1.1, 14_000, 1e-5),
    (256 / 60_000, 1.3, 3_500, 1e-5),
    (0.0005, 0.6, 10_000, 1e-7),
    (0.02, 0.8, 300, 1e-6),
    (0.1, 3.0, 1_500, 1e-4),
    (0.0001, 0.5, 20_000, 1e-8),
]


@pytest.mark.parametrize(("rate", "noise", "steps", "delta"), SETTINGS)
def test_rdp_says_what_opacus_says(rate, noise, steps, delta):
    from opacus.accountants import RDPAccountant

    theirs = RDPAccountant()
    theirs.history = [(noise, rate, steps)]

    ours = epsilon_of([SpentSteps(rate=rate, noise=noise, steps=steps)], delta, "rdp")

    assert ours == pytest.approx(theirs.get_epsilon(delta), rel=0.01)


@pytest.mark.parametrize(("rate", "noise", "steps", "delta"), SETTINGS)
def test_pld_says_what_opacus_finds_within_its_error(rate, noise, steps, delta):
    from opacus.accountants import PRVAccountant

    theirs = PRVAccountant()
    theirs.history = [(noise, rate, steps)]

    ours = epsilon_of([SpentSteps(rate=rate, noise=noise, steps=steps)], delta)

    upper = theirs.get_epsilon(delta, eps_error=0.01)  # at most so much above what it is
    assert upper - 0.02 <= ours <= upper + 0.005


@pytest.mark.parametrize("noise", [1.5, 3.0, 40.0])
@pytest.mark.parametrize("steps", [1, 30])
def test_steps_with_every_sample_cost_what_the_gaussian_mechanism_does(noise, steps):
    # n releases of a sum with noise s are one with noise s / sqrt(n) (Balle and Wang, 2018, theorem 8).
    epsilon = epsilon_of([SpentSteps(rate=1.0, noise=noise, steps=steps)], 1e-5)

    mu = math.sqrt(steps) / noise
    below, above = (stats.norm.cdf(mu / 2 - epsilon / mu), stats.norm.cdf(-mu / 2 - epsilon / mu))
    assert below - math.exp(epsilon) * above == pytest.approx(1e-5, rel=0.02)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("epsilon", [0.3, 8.0])
def test_the_noise_for_a_budget_keeps_it_and_a_little_less_does_not(accountant, epsilon):
    noise = noise_for(epsilon, 1e-6, rate=0.01, steps=700, accountant=accountant)

    def spent(noise: float) -> float:
        return epsilon_of([SpentSteps(rate=0.01, noise=noise, steps=700)], 1e-6, accountant)

    assert spent(noise) <= epsilon < spent(noise * 0.995)


def test_what_was_spent_before_counts():
    before = [SpentSteps(rate=0.02, noise=1.0, steps=200)]

    alone = noise_for(3.0, 1e-5, rate=0.01, steps=500, accountant="rdp")
    after = noise_for(3.0, 1e-5, rate=0.01, steps=500, before=before, accountant="rdp")

    assert after > alone * 1.05
    assert epsilon_of([*before, SpentSteps(rate=0.01, noise=after, steps=500)], 1e-5, "rdp") <= 3.0


def test_a_budget_that_is_spent_is_said_to_be():
    before = [SpentSteps(rate=0.02, noise=1.0, steps=2_000)]

    with pytest.raises(DovetailError, match="is spent: the steps before cost"):
        noise_for(1.0, 1e-5, rate=0.01, steps=1, before=before)


def test_no_step_more_fits_into_a_budget():
    how = {"rate": 0.01, "noise": 1.2}
    steps = steps_within(1.0, 1e-5, most=2_000, **how)

    assert epsilon_of([SpentSteps(steps=steps, **how)], 1e-5) <= 1.0
    assert epsilon_of([SpentSteps(steps=steps + 1, **how)], 1e-5) > 1.0
    assert steps_within(1.0, 1e-5, most=steps - 3, **how) == steps - 3
    assert steps_within(0.01, 1e-9, most=100, rate=0.5, noise=0.5) == 0


@pytest.mark.parametrize("noise", [3e3, 1e5])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_steps_whose_cost_is_lost_in_rounding_are_not_free(noise, accountant):
    assert epsilon_of([SpentSteps(rate=0.01, noise=noise, steps=1_000)], 1e-6, accountant) > 0.0


def test_kinds_of_steps_cost_the_same_in_any_order_and_together_more_than_the_dearest():
    one, other = SpentSteps(rate=0.01, noise=1.0, steps=300), SpentSteps(rate=0.2, noise=6.0, steps=50)

    together = epsilon_of([one, other], 1e-5)

    assert together == pytest.approx(epsilon_of([other, one], 1e-5), rel=1e-3)
    assert together > max(epsilon_of([one], 1e-5), epsilon_of([other], 1e-5))
    assert epsilon_of([], 1e-5) == 0.0
