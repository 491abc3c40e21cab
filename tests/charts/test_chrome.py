"""Trace events for Perfetto and Chrome."""

import json

from dovetail.charts.chrome import cluster_trace, run_trace
from dovetail.charts.timeline import TimelineSpan


def bars(trace):
    """Return name, row, start and length in seconds of every bar."""
    events = [event for event in json.loads(trace)["traceEvents"] if event["ph"] == "X"]
    return [(event["name"], event["tid"], event["ts"] / 1e6, event["dur"] / 1e6) for event in events]


def names(trace):
    """Return what the rows are called."""
    events = json.loads(trace)["traceEvents"]
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def test_a_workers_own_time_and_what_goes_on_beside_have_a_row_each():
    trace = run_trace(
        [
            TimelineSpan("second", "fetch", 100.0, 100.5, 3),
            TimelineSpan("first", "compute", 100.25, 101.0, 3),
            TimelineSpan("second", "compute", 100.5, 101.5, 3),
        ],
        name="runs/a",
    )

    assert names(trace) == {0: "first", 1: "first, beside", 2: "second", 3: "second, beside"}
    assert bars(trace) == [("fetch", 3, 0.0, 0.5), ("compute", 0, 0.25, 0.75), ("compute", 2, 0.5, 1.0)]


def event(t_s, job, what, workers=None):
    return {"t_s": t_s, "job": job, "what": what, "type": "cpu", "workers": workers}


def test_a_job_has_a_bar_for_each_size_and_one_that_still_runs_goes_up_to_now():
    trace = cluster_trace(
        [
            event(10.0, "a-1", "submitted"),
            event(11.0, "a-1", "started", 1),
            event(12.0, "b-2", "submitted"),
            event(13.0, "a-1", "resized", 3),
            event(16.0, "a-1", "done", 0),
            event(16.5, "b-2", "started", 2),
            event(17.0, None, "drain"),
        ],
        name="dovetail",
        now_s=20.0,
    )

    assert names(trace) == {0: "a-1", 1: "b-2"}
    assert bars(trace) == [("1 cpu", 0, 1.0, 2.0), ("3 cpu", 0, 3.0, 3.0), ("2 cpu", 1, 6.5, 3.5)]
