"""What a private step owes: how far gradients are clipped, how much noise is added, and by which stream."""

from __future__ import annotations

import msgspec


class PrivateSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a private run, as long as nothing changes that their sums depend on.

    Each step takes every one of `samples` with the same chance batch / samples (Poisson sampling), clips the gradient
    of each, over dense parameters and rows together, to `clip`, and adds noise of standard deviation `deviation` to
    every number of their sum. The sum is then divided by `batch`, never by how many samples were there.
    """

    clip: float
    """The most that the norm of one sample's gradient is."""
    noise: float
    """Standard deviation of the noise in a sum, over `clip`."""
    samples: int
    """Of the data, of which each step draws."""
    batch: int
    """How many a step draws on average."""
    until_step: int
    """How many steps of the run the budget lasts for, those before included: no step of this number or above begins."""
    stream: str
    """Names the stream of noise, drawn at random for every plan of spending: no other sums ever get this noise."""
    request: str = ""
    """A digest of all that the steps' sums depend on: a run that goes on with another one has another stream."""
    first_step: int = 0
    """The step at which the stream began."""
    planned_step: int = 0
    """The step at which all epochs are over: `until_step` is less where the budget does not last for them."""

    @property
    def lasts(self) -> bool:
        """Whether the budget is enough for all epochs."""
        return self.until_step >= self.planned_step

    @property
    def rate(self) -> float:
        """The chance of each sample to be in a step."""
        return self.batch / self.samples

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise in each number of a step's sum of clipped gradients."""
        return self.noise * self.clip
