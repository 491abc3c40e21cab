"""Problems made up from a seed: for benchmarks, for tests, and for training planners that learn."""

from __future__ import annotations

import itertools
import random

import msgspec

from dovetail.spec.layer import Layer, LayerTime
from dovetail.spec.link import Link, SiteLink
from dovetail.spec.problem import Problem, Training
from dovetail.spec.resource import ResourceType

SAMPLES = 100_000_000
BATCH = 4096


def synthetic_problem(
    *,
    num_layers: int,
    num_types: int,
    seed: int,
    min_samples_per_s: float = 50_000.0,
    limit_share: float = 0.0,
    link_share: float = 0.0,
    hole_share: float = 0.0,
    num_sites: int = 0,
) -> Problem:
    """Return a problem in which no type is best at everything.

    Prices spread over two orders of magnitude. A type is fast at computing in rough proportion to its price, and has
    its own strength at moving data; layers are heavy on one or the other. `limit_share` of the types have limits of 1
    to 32 units, `link_share` of the pairs are linked (none: cuts are free), and `hole_share` of the (layer, type) pairs
    cannot be. With `num_sites`, types stand at so many sites, most of which are linked, slowly and for money.
    """
    draw = random.Random(seed)  # noqa: S311
    prices = [10 ** draw.uniform(-1.4, 0.6) for _ in range(num_types)]
    compute_strength = [price ** draw.uniform(0.7, 1.3) for price in prices]
    comm_strength = [price ** draw.uniform(0.0, 0.9) for price in prices]
    resources = tuple(
        ResourceType(
            name=f"type{t}",
            price_per_hour=round(prices[t], 4),
            limit=draw.randint(1, 32) if draw.random() < limit_share else None,
        )
        for t in range(num_types)
    )
    layers = []
    for position in range(num_layers):
        compute_s, comm_s = 10 ** draw.uniform(-2.5, -0.8), 10 ** draw.uniform(-3.0, -1.0)
        can_run = [t for t in range(num_types) if draw.random() >= hole_share] or [draw.randrange(num_types)]
        on = {
            f"type{t}": LayerTime(
                compute_s=compute_s * draw.uniform(0.7, 1.4) / compute_strength[t],
                comm_s=comm_s * draw.uniform(0.7, 1.4) / comm_strength[t],
                compute_parallel=draw.uniform(0.9, 1.0),
                comm_parallel=draw.uniform(0.8, 1.0),
            )
            for t in can_run
        }
        layers.append(
            Layer(
                name=f"layer{position}",
                kind="embedding" if position == 0 else "fc",
                on=on,
                input_bytes=10 ** draw.uniform(5, 7),
                weight_bytes=10 ** draw.uniform(4, 8),
                output_bytes=10 ** draw.uniform(5, 7),
            )
        )
    links = tuple(
        Link(
            source=f"type{a}",
            target=f"type{b}",
            bytes_per_s=draw.choice([1.25e9, 3.125e9, 12.5e9]),
            latency_s=draw.choice([2e-5, 1e-4]),
        )
        for a in range(num_types)
        for b in range(a + 1, num_types)
        if draw.random() < link_share
    )
    training = Training(samples=SAMPLES, batch=BATCH, min_samples_per_s=min_samples_per_s)
    problem = Problem(training=training, resources=resources, layers=tuple(layers), links=links)
    return _at_sites(problem, num_sites, draw) if num_sites > 0 else problem


def _at_sites(problem: Problem, num_sites: int, draw: random.Random) -> Problem:
    """Return a problem with its types at sites: egress of a tenth of a cent to five cents a GB, at times of nothing."""
    stand_at = [f"site{t % num_sites}" for t in range(len(problem.resources))]
    draw.shuffle(stand_at)
    ways = list(itertools.permutations(sorted(set(stand_at)), 2))
    site_links = tuple(
        SiteLink(
            source=one,
            target=other,
            bytes_per_s=10 ** draw.uniform(7.5, 10),
            latency_s=draw.choice([0.0, 1e-3]),
            price_per_gb=draw.choice([0.0, 0.001, 0.01, 0.05]),
        )
        for position, (one, other) in enumerate(ways)
        if position == 0 or draw.random() < 0.7
    )
    resources = tuple(
        msgspec.structs.replace(resource, site=site) for resource, site in zip(problem.resources, stand_at, strict=True)
    )
    return msgspec.structs.replace(problem, resources=resources, site_links=site_links)
