"""Small makers of real values: each gives something valid, and takes what the test is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.spec import Layer, LayerTime, Link, Problem, ResourceType, SiteLink, Stage, Training


def make_layer_time(
    compute_s: float = 1.0, comm_s: float = 0.0, *, compute_parallel: float = 1.0, comm_parallel: float = 1.0
) -> LayerTime:
    """Return the time of a layer that scales perfectly unless told otherwise."""
    return LayerTime(compute_s=compute_s, comm_s=comm_s, compute_parallel=compute_parallel, comm_parallel=comm_parallel)


def make_layer(name: str = "layer", on: Mapping[str, LayerTime] | None = None, **keys: Any) -> Layer:
    """Return a layer that takes a second on `cpu` and on `gpu`, or what `on` says."""
    times = {"cpu": make_layer_time(), "gpu": make_layer_time()} if on is None else dict(on)
    return Layer(name=name, on=times, **keys)


def make_resource(name: str = "cpu", price_per_hour: float = 1.0, **keys: Any) -> ResourceType:
    """Return a type at a dollar an hour."""
    return ResourceType(name=name, price_per_hour=price_per_hour, **keys)


def make_link(source: str = "cpu", target: str = "gpu", bytes_per_s: float = 1e9, latency_s: float = 0.0) -> Link:
    """Return a link between two types."""
    return Link(source=source, target=target, bytes_per_s=bytes_per_s, latency_s=latency_s)


def make_site_link(source: str = "eu", target: str = "us", bytes_per_s: float = 1e9, **keys: float) -> SiteLink:
    """Return a link between two sites."""
    return SiteLink(source=source, target=target, bytes_per_s=bytes_per_s, **keys)


def make_problem(
    *,
    layers: Sequence[Layer] | None = None,
    resources: Sequence[ResourceType] | None = None,
    links: Sequence[Link] = (),
    site_links: Sequence[SiteLink] = (),
    **training: Any,
) -> Problem:
    """Return a problem of two layers on `cpu` and `gpu`; further keywords are those of its training."""
    return Problem(
        training=Training(**{"samples": 3600, "batch": 1, **training}),
        resources=tuple(resources or (make_resource("cpu", 1.0), make_resource("gpu", 10.0))),
        layers=tuple(layers or (make_layer("first"), make_layer("second"))),
        links=tuple(links),
        site_links=tuple(site_links),
    )


def make_stages(*stages: tuple[str, int, int, int]) -> tuple[Stage, ...]:
    """Return stages from (resource, first layer, last layer, units)."""
    return tuple(
        Stage(resource=resource, first_layer=first, last_layer=last, units=units)
        for resource, first, last, units in stages
    )
