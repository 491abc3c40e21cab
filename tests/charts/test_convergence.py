"""Losses of runs side by side, and widths in a timeline."""

import json

import numpy as np
import pytest

from dovetail.charts.chrome import run_trace
from dovetail.charts.timeline import TimelineSpan, Width, draw_timeline, read_widths
from dovetail.errors import DovetailError
from dovetail.runtime.figures import LinkWidths
from dovetail.runtime.messages import Tuned
from testbed.pictures import draw_convergence

SPANS = [TimelineSpan("w", "compute", 10.0, 11.0, 0), TimelineSpan("w", "compute", 12.0, 13.0, 1)]
WIDTHS = [Width(11.5, "w", "to server-0", 32, 4, 1.0), Width(12.5, "w", "to server-0", 4, 4, 7.9)]


def texts(figure):
    return [text.get_text().strip() for axes in figure.axes for text in axes.texts]


def test_every_run_has_a_line_and_its_gap_to_the_first():
    falling = np.linspace(1.0, 0.5, 100)

    figure = draw_convergence({"32 bits": falling, "4 bits": falling + 0.01}, "a title", window=10)

    assert [line.get_gid() for line in figure.axes[0].lines] == ["32 bits", "4 bits"]
    assert "4 bits (+0.0100)" in texts(figure)


def test_too_few_losses_are_refused():
    with pytest.raises(DovetailError, match="fewer than 50"):
        draw_convergence({"32 bits": [1.0] * 10}, "a title")


def test_a_timeline_marks_changes_of_width_and_not_what_they_brought():
    assert texts(draw_timeline(SPANS, widths=WIDTHS)).count("4 bits to server-0") == 1


def test_a_trace_has_them_as_instants():
    events = json.loads(run_trace(SPANS, name="run", widths=WIDTHS))["traceEvents"]

    assert [(each["name"], each["ts"]) for each in events if each["ph"] == "i"] == [("4 bits to server-0", 1_500_000)]


def test_what_the_coordinator_writes_of_links_can_be_read(tmp_path):
    links = LinkWidths(tmp_path)
    told = {"name": "w", "generation": 1, "link": "to server-0", "reason": "that is why"}

    change = links.add(Tuned(before=32, bits=4, gain=1.0, **told))
    brought = links.add(Tuned(before=4, bits=4, gain=7.5, **told))

    assert change == "w to server-0: 4 bits instead of 32, for that is why"
    assert "7.5x" in brought
    assert links.bits_of("w") == "4/32"
    assert links.bits_of("x") == ""
    assert (links.summary["w to server-0"].gain, links.summary["w to server-0"].changes) == (7.5, 1)
    assert [(each.before, each.bits, each.gain) for each in read_widths(tmp_path)] == [(32, 4, 1.0), (4, 4, 7.5)]
