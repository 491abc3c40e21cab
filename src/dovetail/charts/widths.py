"""Where in a timeline links were given other widths: a tick in their worker's row, with the bits from then on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from matplotlib.axes import Axes

from dovetail.charts.labels import write
from dovetail.charts.palette import INK
from dovetail.runtime.folder import WIDTHS


class Width(NamedTuple):
    """A decision: from then on a link of a worker has so many bits; with as many as before, what that brought."""

    time_s: float
    worker: str
    link: str
    before: int
    bits: int
    gain: float


def read_widths(folder: Path, *, since_s: float = 0.0) -> list[Width]:
    """Return the decisions of a run, in their order; none where no width was ever chosen."""
    path = folder / WIDTHS
    decoder = msgspec.json.Decoder(tuple[float, str, str, int, int, float])
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            found.append(Width(*decoder.decode(line)))
        except msgspec.MsgspecError:
            continue
    return [width for width in found if width.time_s >= since_s]


def mark_widths(axes: Axes, widths: Sequence[Width], workers: Sequence[str], zero_s: float) -> None:
    """Draw a tick for every change, in the row of its worker; axes count seconds from `zero_s`."""
    for width in widths:
        if width.worker in workers and width.before != width.bits:
            row, at_s = len(workers) - 1 - workers.index(width.worker), width.time_s - zero_s
            axes.plot([at_s, at_s], [row + 0.05, row + 0.95], color=INK, linewidth=0.9, gid="widths")
            is_there = width.link.startswith("to ")
            place = row + (0.9 if is_there else 0.4)
            write(axes, at_s, place, f" {width.bits} bits {width.link}", colour=INK, va="top", size=7.5)
