"""Prometheus' text format, version 0.0.4: families of figures, each with its labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[Mapping[str, str], float]


def gauge(name: str, help_: str, samples: Iterable[Sample]) -> str:
    """Return figures that go up and down."""
    return _family(name, "gauge", help_, samples)


def counter(name: str, help_: str, samples: Iterable[Sample]) -> str:
    """Return figures that only grow."""
    return _family(name, "counter", help_, samples)


def _family(name: str, kind: str, help_: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    """Return a number as Prometheus writes it; Python's words for what is none are not its."""
    words = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
    return words.get(text := repr(float(value)), text)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
