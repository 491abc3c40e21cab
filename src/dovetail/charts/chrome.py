"""Timelines as trace events: files that Perfetto and Chrome's `chrome://tracing` open.

A worker has two rows: its own time, and what goes on beside it. A cluster has a row a job, a bar for each size it had.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dovetail.charts.timeline import OWN_TIME, TimelineSpan, Width

MICRO = 1e6
ENDS = ("done", "failed", "cancelled", "stopped")


def run_trace(spans: Sequence[TimelineSpan], *, name: str, widths: Sequence[Width] = ()) -> bytes:
    """Return a run's spans as trace events, the first at 0; widths that were chosen for links are marks."""
    workers = sorted({span.worker for span in spans})
    begin_s = min(span.start_s for span in spans)
    events = [_named("process_name", 0, 0, name)]
    for row, worker in enumerate(workers):
        events.append(_named("thread_name", 0, 2 * row, worker))
        events.append(_named("thread_name", 0, 2 * row + 1, f"{worker}, beside"))
    for span in spans:
        row = 2 * workers.index(span.worker) + (0 if span.kind in OWN_TIME else 1)
        start, end = span.start_s - begin_s, span.end_s - begin_s
        events.append(_span(span.kind, row, start, end, {"step": span.step}))
    for width in widths:
        if width.worker in workers and width.before != width.bits:
            instant = {"name": f"{width.bits} bits {width.link}", "ph": "i", "s": "t", "pid": 0}
            at = round((width.time_s - begin_s) * MICRO)
            events.append({**instant, "tid": 2 * workers.index(width.worker) + 1, "ts": at})
    return _file(events, name)


def cluster_trace(happened: Iterable[Mapping[str, Any]], *, name: str, now_s: float) -> bytes:
    """Return a daemon's events as trace events: for each job a bar while it held so many workers."""
    events, rows = [_named("process_name", 0, 0, name)], dict[str, int]()
    held: dict[str, tuple[float, str, int]] = {}
    begin_s: float | None = None
    for event in happened:
        job, t_s = event["job"], event["t_s"]
        begin_s = t_s if begin_s is None else begin_s
        if job is None:
            continue
        if job not in rows:
            rows[job] = len(rows)
            events.append(_named("thread_name", 0, rows[job], job))
        if event["what"] in ("started", "resized", *ENDS) and job in held:
            since_s, type_, workers = held.pop(job)
            events.append(_bar(rows[job], type_, workers, since_s - begin_s, t_s - begin_s))
        if event["what"] in ("started", "resized"):
            held[job] = (t_s, event["type"], event["workers"])
        else:
            instant = {"name": event["what"], "ph": "i", "s": "t", "pid": 0, "tid": rows[job]}
            events.append({**instant, "ts": round((t_s - begin_s) * MICRO)})
    for job, (since_s, type_, workers) in held.items():
        events.append(_bar(rows[job], type_, workers, since_s - (begin_s or 0.0), now_s - (begin_s or 0.0)))
    return _file(events, name)


def _bar(row: int, type_: str, workers: int, start_s: float, end_s: float) -> dict[str, Any]:
    return _span(f"{workers} {type_}", row, start_s, end_s, {"workers": workers, "type": type_})


def _span(name: str, row: int, start_s: float, end_s: float, facts: dict[str, Any]) -> dict[str, Any]:
    start, end = round(start_s * MICRO), round(end_s * MICRO)
    return {"name": name, "ph": "X", "pid": 0, "tid": row, "ts": start, "dur": max(0, end - start), "args": facts}


def _named(what: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": row, "args": {"name": name}}


def _file(events: list[dict[str, Any]], name: str) -> bytes:
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"run": name}})
