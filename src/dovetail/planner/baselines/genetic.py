"""A genetic algorithm: tournaments, crossover of stages, mutation of layers, and the best carried over."""

from __future__ import annotations

import numpy as np

from dovetail.planner.arrays import Ints, ProblemArrays
from dovetail.planner.baselines.score import Proposal, Scores

POPULATION = 100
GENERATIONS = 100
ELITE = 4
TOURNAMENT = 3
LEAST_MUTATION = 0.05
"""One layer of each child is changed on average, and in long models at least this share of them."""


class Genetic:
    """Proposes generation after generation."""

    def __init__(self, arrays: ProblemArrays, *, seed: int, generations: int | None = None) -> None:
        """Start from random plans in which every layer is on a type that can run it."""
        self.rng = np.random.default_rng(seed)
        self.runnable = runnable_types(arrays)
        self.generations_left = GENERATIONS if generations is None else generations
        self.mutation = max(1.0 / arrays.num_layers, LEAST_MUTATION)
        self.population = random_assignments(self.runnable, POPULATION, self.rng)

    def propose(self) -> Proposal | None:
        """Return the living generation, until the last."""
        self.generations_left -= 1
        return Proposal(self.population) if self.generations_left >= 0 else None

    def finish(self) -> None:
        """Add nothing: the best was proposed already."""

    def learn(self, proposal: Proposal, scores: Scores) -> None:
        """Breed the next generation from the fitter plans."""
        fitness = scores.reward()
        parents = [self._winners(fitness), self._winners(fitness)]
        # Two borders: a run of consecutive layers comes from the second parent.
        layers = np.arange(self.population.shape[1])
        borders = np.sort(self.rng.integers(0, len(layers) + 1, size=(POPULATION, 2)), axis=1)
        from_second = (layers >= borders[:, :1]) & (layers < borders[:, 1:])
        children = np.where(from_second, self.population[parents[1]], self.population[parents[0]])
        mutants = self.rng.random(children.shape) < self.mutation
        children = np.where(mutants, random_assignments(self.runnable, POPULATION, self.rng), children)
        children[:ELITE] = self.population[np.argsort(-fitness)[:ELITE]]
        self.population = children

    def _winners(self, fitness: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Ints:
        """Return one parent for each child: the fittest of a few drawn at random."""
        drawn = self.rng.integers(0, POPULATION, size=(POPULATION, TOURNAMENT))
        winners: Ints = drawn[np.arange(POPULATION), np.argmax(fitness[drawn], axis=1)]
        return winners


def runnable_types(arrays: ProblemArrays) -> list[Ints]:
    """Return for each layer the types that can run it and can be had."""
    return [
        np.flatnonzero((arrays.end_of_run[:, position] > position) & (arrays.limit > 0))
        for position in range(arrays.num_layers)
    ]


def random_assignments(runnable: list[Ints], count: int, rng: np.random.Generator) -> Ints:
    """Return plans with a random type that can run it for every layer."""
    return np.stack([rng.choice(types, size=count) for types in runnable], axis=1)
