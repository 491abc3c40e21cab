"""Figures for Prometheus: families of them, each with its labels, and the page that its own client makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[Mapping[str, str], float]


class Family(NamedTuple):
    """Figures of one name: a `gauge` goes up and down, a `counter`, whose name ends in `_total`, only grows."""

    kind: str
    name: str
    help: str
    samples: Iterable[Sample]


def gauge(name: str, help_: str, samples: Iterable[Sample]) -> Family:
    """Return figures that go up and down."""
    return Family("gauge", name, help_, samples)


def counter(name: str, help_: str, samples: Iterable[Sample]) -> Family:
    """Return figures that only grow."""
    return Family("counter", name, help_, samples)


def page_of(families: Iterable[Family]) -> str:
    """Return the page in Prometheus' text format, version 0.0.4."""
    from prometheus_client import generate_latest  # noqa: PLC0415 - slow, and most runs show nobody their figures
    from prometheus_client.core import Metric  # noqa: PLC0415
    from prometheus_client.registry import Collector  # noqa: PLC0415

    class Figures(Collector):
        def collect(self) -> Iterator[Metric]:
            for family in families:
                metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
                for labels, value in family.samples:
                    metric.add_sample(family.name, dict(labels), value)
                yield metric

    return generate_latest(Figures()).decode()
