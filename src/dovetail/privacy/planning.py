"""What a budget needs, and what it costs, before anything runs: `dovetail privacy`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from dovetail.errors import SpecError
from dovetail.privacy.accountant import SpentSteps, epsilon_of, noise_for, steps_within
from dovetail.spec.privacy import Accountant


class PrivacyBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A private training: its noise, and what it spends."""

    samples: int
    batch: int
    """How many samples a step draws on average."""
    epochs: int
    delta: float
    accountant: Accountant
    rate: float
    """The chance of each sample to be in a step."""
    planned_steps: int
    """Of all epochs."""
    steps: int
    """As many of them as the budget lasts for."""
    noise: float
    """Standard deviation of the noise in a sum of gradients, in clips."""
    epsilon: float
    """What all `steps` spend."""
    budget: float | None
    """The epsilon that was asked for; None where only the noise was."""
    mean_noise: float
    """Standard deviation of the noise in a number of the mean gradient, in clips: noise / batch."""

    @property
    def lasts(self) -> bool:
        """Whether the budget is enough for all epochs."""
        return self.steps == self.planned_steps

    def after_epochs(self) -> Iterator[tuple[float, float]]:
        """Yield epochs and the epsilon spent by then, at a few points on the way."""
        for part in (0.25, 0.5, 0.75, 1.0):
            steps = max(1, round(self.steps * part))
            spent = [SpentSteps(rate=self.rate, noise=self.noise, steps=steps)]
            yield steps * self.epochs / self.planned_steps, epsilon_of(spent, self.delta, self.accountant)


def steps_of(samples: int, batch: int, epochs: int) -> int:
    """Return how many steps a private run takes: in each epoch as many as there are batches, a part of one counted."""
    return epochs * math.ceil(samples / batch)


def budget(
    *,
    samples: int,
    batch: int,
    delta: float,
    epochs: int = 1,
    epsilon: float | None = None,
    noise: float | None = None,
    accountant: Accountant = "pld",
) -> PrivacyBudget:
    """Return what private training comes to: the noise a budget needs, or what some noise spends.

    With `epsilon` alone it is the least noise with which all epochs stay within it; with `noise` alone, what they
    spend; with both, how many steps the budget lasts for.
    """
    _check(samples=samples, batch=batch, epochs=epochs, delta=delta, epsilon=epsilon, noise=noise)
    rate, planned = batch / samples, steps_of(samples, batch, epochs)
    steps = planned
    if noise is None:
        noise = noise_for(epsilon or 0.0, delta, rate=rate, steps=planned, accountant=accountant)
    elif epsilon is not None:
        steps = steps_within(epsilon, delta, rate=rate, noise=noise, most=planned, accountant=accountant)
    return PrivacyBudget(
        samples=samples,
        batch=batch,
        epochs=epochs,
        delta=delta,
        accountant=accountant,
        rate=rate,
        planned_steps=planned,
        steps=steps,
        noise=noise,
        epsilon=epsilon_of([SpentSteps(rate=rate, noise=noise, steps=steps)], delta, accountant),
        budget=epsilon,
        mean_noise=noise / batch,
    )


def _check(*, samples: int, batch: int, epochs: int, delta: float, epsilon: float | None, noise: float | None) -> None:
    """Refuse what nobody could train by."""
    for name, count in (("samples", samples), ("batch", batch), ("epochs", epochs)):
        if count < 1:
            raise SpecError(f"is {count}, expected at least 1", key=name, hint=f"give {name} as a whole number")
    if batch > samples:
        raise SpecError(
            f"is {batch:,}, and there are {samples:,} samples", key="batch", hint="a batch is a part of the samples"
        )
    if not 0.0 < delta < 1.0:
        raise SpecError(
            f"is {delta:g}, expected a number above 0 and below 1", key="delta", hint=f"e.g. {0.1 / samples:.0e}"
        )
    if epsilon is None and noise is None:
        raise SpecError("is missing", key="epsilon", hint="give the budget, or the noise whose cost you ask for")
    for name, value in (("epsilon", epsilon), ("noise", noise)):
        if value is not None and not (value > 0.0 and math.isfinite(value)):
            raise SpecError(f"is {value:g}, expected a number above zero", key=name, hint=f"e.g. {name} = 1.0")
