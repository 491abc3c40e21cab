"""The loop that every searching method shares: propose plans, price them, learn from the price."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from dovetail.planner.arrays import Ints
from dovetail.planner.baselines.score import Proposal, Scores
from dovetail.planner.cheapest_route import Route
from dovetail.planner.exact import Clock


class Proposer(Protocol):
    """A way to look for plans."""

    def propose(self) -> Proposal | None:
        """Return plans to be priced, or None when there is nothing more to try."""
        ...

    def learn(self, proposal: Proposal, scores: Scores) -> None:
        """Take in what the proposed plans cost."""
        ...

    def finish(self) -> Proposal | None:
        """Return the last word, if there is one beside what was proposed already."""
        ...


@runtime_checkable
class Learner(Proposer, Protocol):
    """A proposer with a policy that can be refined on measured runs, and kept."""

    def begin_measured(self) -> None:
        """Begin a second phase of few plans, whose costs will be measured."""
        ...

    def save(self, path: Path) -> None:
        """Write the policy to a file."""
        ...


class Prices(Protocol):
    """Something that prices proposals: by the model, or by running them."""

    def score(self, proposal: Proposal) -> Scores:
        """Return what each plan costs."""
        ...

    def route(self, assignment: Ints, units: Ints) -> Route:
        """Return one priced proposal as a route."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRound:
    """One turn of the loop: how many plans were priced so far, and USD per hour over samples/s, mean and best."""

    number: int
    num_priced: int
    mean_rate: float
    best_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The cheapest legal plan that was met (none: `route` is None) and how the search went."""

    route: Route | None
    rate: float
    rounds: tuple[SearchRound, ...]


Progress = Callable[[SearchRound], None]


def search(
    proposer: Proposer, scorer: Prices, *, clock: Clock, deadline_s: float, progress: Progress | None = None
) -> SearchResult:
    """Run the loop until the proposer has nothing more to try or time is up; return the cheapest plan met."""
    best_rate, best_route = math.inf, None
    rounds: list[SearchRound] = []
    num_priced = 0
    finished = False
    while not finished:
        proposal = proposer.propose() if clock() < deadline_s or not rounds else None
        if proposal is None:
            proposal, finished = proposer.finish(), True
            if proposal is None:
                break
        scores = scorer.score(proposal)
        cheapest = int(np.argmin(scores.rates))
        if scores.rates[cheapest] < best_rate:
            best_rate = float(scores.rates[cheapest])
            best_route = scorer.route(proposal.assignments[cheapest], scores.units[cheapest])
        if finished:
            break
        proposer.learn(proposal, scores)
        num_priced += len(scores.rates)
        legal = scores.rates[np.isfinite(scores.rates)]
        mean_rate = float(legal.mean()) if len(legal) else math.inf
        rounds.append(
            SearchRound(number=len(rounds) + 1, num_priced=num_priced, mean_rate=mean_rate, best_rate=best_rate)
        )
        if progress is not None:
            progress(rounds[-1])
    return SearchResult(route=best_route, rate=best_rate, rounds=tuple(rounds))
