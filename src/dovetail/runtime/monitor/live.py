"""How a run goes, while it goes: a table that is drawn anew on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dovetail.logs import tell
from dovetail.runtime.finished.result import Validated
from dovetail.runtime.messages import Report, WorkerStatus
from dovetail.runtime.monitor.callbacks import Callback
from dovetail.spec.run import Run
from dovetail.units import format_count, format_duration

LINE_EVERY_S = 3.0
MOST_EVENTS = 6
NOTABLE = 0.01
"""The part of the time from which on waiting for data is shown."""
FACTS = ("step", "samples", "total_samples", "samples_per_s", "loss", "auc")
"""What programs that read the lines are told beside the words."""


class View:
    """Shows reports on stderr."""

    def __init__(self, title: str, epochs: int) -> None:
        """Draw a table where stderr is a terminal, else write lines."""
        self._title, self._epochs = title, epochs
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._events: list[str] = []
        self._written_s = -math.inf
        self._begun_s = time.monotonic()

    def __enter__(self) -> View:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the table away; what it told last is in the summary."""
        if self._live is not None:
            self._live.stop()

    def tell(self, text: str) -> None:
        """Show an event."""
        self._events = [*self._events, f"{time.strftime('%H:%M:%S')}  {text}"][-MOST_EVENTS:]
        if self._live is None:
            tell(text)

    def show(self, report: Report) -> None:
        """Show a report."""
        for event in report.events:
            self.tell(event)
        if self._live is not None:
            self._live.update(self._drawn(report))
        elif report.samples and (
            time.monotonic() - self._written_s >= LINE_EVERY_S or report.samples == report.total_samples
        ):
            if report.samples == report.total_samples and report.state != "done":
                return
            self._written_s = time.monotonic()
            facts = {name: value for name in FACTS if math.isfinite(value := getattr(report, name))}
            tell(plain_line(report), **facts)

    def _drawn(self, report: Report) -> Group:
        """Return a report as figures, a bar and a table of workers."""
        head = Text(f"{self._title}   {report.state}", style="bold")
        head.append(f"   epoch {report.epoch + 1}/{self._epochs}   step {report.step:,}", style="not bold")
        bar = Table.grid(padding=(0, 1))
        done = report.samples / max(1, report.total_samples)
        bar.add_row(
            ProgressBar(total=1.0, completed=done, width=40),
            f"{done:4.0%}",
            f"{format_count(report.samples)} of {format_count(report.total_samples)} samples",
            _eta(report),
        )
        figures = Text(_figures(report))
        servers = Text(f"servers {', '.join(report.servers) or 'are starting'}", style="dim")
        events = [Text(event, style="yellow") for event in self._events]
        return Group(head, bar, figures, _worker_table(report), servers, *events)


class Shown(Callback):
    """Shows a run to people while it goes on."""

    def __init__(self, view: View, *, is_open: bool = False) -> None:
        """Draw on a view, which is opened and closed here unless someone else does."""
        self._view, self._is_own = view, not is_open

    def begin(self, folder: Path, run: Run) -> None:
        """Open the view."""
        if self._is_own:
            self._view.__enter__()
            self._view.tell(f"training into {folder}")

    def report(self, report: Report) -> None:
        """Show a report."""
        self._view.show(report)

    def validated(self, found: Validated) -> None:
        """Show how good a checkpoint is."""
        figures = "  ".join(f"{name} {value:.4f}" for name, value in found.figures.items() if value is not None)
        self._view.tell(f"validation at step {found.step:,}: {figures}{', the best so far' if found.is_best else ''}")

    def close(self) -> None:
        """Close the view."""
        if self._is_own:
            self._view.__exit__(None, None, None)


def plain_line(report: Report) -> str:
    """Return a report on one line."""
    done = report.samples / max(1, report.total_samples)
    shares = ", ".join(
        f"{worker.name} {worker.share:.0%} (idle {worker.idle:.0%}{_data(worker)})"
        if worker.state == "working"
        else f"{worker.name} {worker.state}"
        for worker in report.workers
    )
    return f"{done:4.0%}  step {report.step:,}  {_figures(report)}  {shares}  {_eta(report)}".rstrip()


def _data(worker: WorkerStatus) -> str:
    """Say how much of the time a worker waits for samples to be read, where it does."""
    return f", waits for data {worker.data:.0%}" if worker.data >= NOTABLE else ""


def _figures(report: Report) -> str:
    """Return speed, loss and AUC in words."""
    parts = [f"{format_count(report.samples_per_s)} samples/s"]
    if math.isfinite(report.loss):
        parts.append(f"loss {report.loss:.4f}")
    if math.isfinite(report.auc):
        parts.append(f"AUC {report.auc:.4f}")
    parts += [f"{name} {value:.4f}" for name, value in report.metrics if math.isfinite(value)]
    return "  ".join(parts)


def _eta(report: Report) -> str:
    left = report.total_samples - report.samples
    if report.samples_per_s <= 0 or left <= 0:
        return ""
    return f"{format_duration(left / report.samples_per_s)} left"


def _worker_table(report: Report) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    has_bits = any(worker.bits for worker in report.workers)
    has_kept = any(worker.kept is not None for worker in report.workers)
    has_data = any(worker.data >= NOTABLE for worker in report.workers)
    others = [
        *(["waits for data"] if has_data else []),
        *(["bits"] if has_bits else []),
        *(["rows kept"] if has_kept else []),
    ]
    for heading in ("worker", "", "share", "samples/s", "idle", *others):
        table.add_column(heading, justify="left" if heading in ("worker", "") else "right", no_wrap=True)
    for worker in report.workers:
        is_there = worker.state == "working"
        table.add_row(
            worker.name,
            "" if is_there else worker.state,
            f"{worker.share:.1%}",
            format_count(worker.samples_per_s),
            f"{worker.idle:.0%}",
            *([f"{worker.data:.0%}"] if has_data else []),
            *([worker.bits] if has_bits else []),
            *(["" if worker.kept is None else f"{worker.kept:.1%}"] if has_kept else []),
            style="" if is_there else "dim",
        )
    return table
