"""Timelines: the spans that are drawn are those that were recorded."""

import json

import numpy as np
import pytest

from dovetail.charts.figure import save_figure
from dovetail.charts.timeline import KINDS, TimelineSpan, binned, draw_timeline, read_spans, timeline_facts
from dovetail.errors import DovetailError

SPANS = [
    TimelineSpan("fast", "compute", 100.0, 101.0, 0),
    TimelineSpan("fast", "send", 101.0, 101.5, 0),
    TimelineSpan("fast", "wait", 101.0, 102.0, 0),
    TimelineSpan("slow", "fetch", 100.0, 100.5, 0),
    TimelineSpan("slow", "compute", 100.5, 102.0, 0),
]


def write_run(folder, spans, tail=""):
    lines = "".join(json.dumps(list(span)) + "\n" for span in spans)
    (folder / "timeline.jsonl").write_text(lines + tail)
    return folder


def test_spans_are_read_in_order_and_an_unfinished_line_is_left_out(tmp_path):
    write_run(tmp_path, reversed(SPANS), tail='["fast", "comp')

    spans = read_spans(tmp_path)

    assert sorted(spans) == sorted(SPANS)
    assert [span.start_s for span in spans] == [100.0, 100.0, 100.5, 101.0, 101.0]


def test_spans_from_before_a_resumed_run_can_be_left_out(tmp_path):
    write_run(tmp_path, SPANS)

    assert {span.start_s for span in read_spans(tmp_path, since_s=100.4)} == {100.5, 101.0}
    with pytest.raises(DovetailError, match="holds no spans"):
        read_spans(tmp_path, since_s=200.0)


def test_a_run_without_a_timeline_says_how_to_get_one(tmp_path):
    with pytest.raises(DovetailError, match=r"has no timeline.jsonl") as caught:
        read_spans(tmp_path)
    assert "--timeline" in caught.value.hint

    (tmp_path / "timeline.jsonl").touch()
    with pytest.raises(DovetailError, match="holds no spans"):
        read_spans(tmp_path)


def test_a_bin_holds_the_part_of_it_that_spans_cover():
    spans = [TimelineSpan("a", "compute", 0.25, 1.5, 0), TimelineSpan("a", "compute", 1.75, 2.0, 1)]

    parts = binned(spans, np.array([0.0, 1.0, 2.0, 3.0]))

    # By hand: 0.75 of the first second, 0.5 + 0.25 of the second, nothing of the third.
    assert parts == pytest.approx([0.75, 0.75, 0.0])
    assert binned([], np.array([0.0, 1.0])) == pytest.approx([0.0])


def test_the_facts_are_each_workers_seconds():
    facts = timeline_facts(SPANS)

    assert facts.columns == ("worker", "compute", "wait", "fetch", "send")
    assert facts.rows == (
        ("fast", "1.00 s", "1.00 s", "0.00 s", "0.50 s"),
        ("slow", "1.50 s", "0.00 s", "0.50 s", "0.00 s"),
    )


def test_every_span_of_the_window_is_a_box_in_its_workers_row():
    figure = draw_timeline(SPANS, last_s=1.2)

    window = figure.axes[1]
    boxes = {each.get_gid(): [path.vertices for path in each.get_paths()] for each in window.collections}
    (computed,) = (vertices for vertices in boxes["spans-compute"] if vertices[:, 1].min() > 1)
    assert len(boxes["spans-compute"]) == 2
    # `fast` stands above `slow`; of its second of computing 0.2 s lie within the last 1.2 s, which begin at 0.8 s.
    assert (computed[:, 0].min(), computed[:, 0].max()) == pytest.approx((0.8, 1.0))
    assert "spans-fetch" not in boxes


def test_the_title_says_how_much_was_waiting():
    figure = draw_timeline(SPANS)

    # 1 s of waiting in two workers' 2 s each.
    assert figure.get_suptitle() == "2 workers over 2 s"
    assert any("25.0%" in text.get_text() for text in figure.texts)


def test_a_page_names_the_colours_and_the_workers(tmp_path):
    page = tmp_path / "timeline.html"

    save_figure(draw_timeline(SPANS), page, table=timeline_facts(SPANS))

    text = page.read_text()
    assert all(word in text for word in ("fast", "slow", "compute", "wait", "fetch", "send"))
    assert KINDS["compute"] in text
    assert "reduce" not in text


def test_a_single_instant_can_be_drawn():
    assert draw_timeline([TimelineSpan("only", "compute", 5.0, 5.0, 0)]).axes
