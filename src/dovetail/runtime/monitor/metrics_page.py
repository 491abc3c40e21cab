"""A run's figures for Prometheus: a page that whoever watches a run serves while it goes on.

The address is also in `prometheus.json` in the run's folder, as Prometheus finds targets in files.
"""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from dovetail.atomic_file import replace_file
from dovetail.prometheus import CONTENT_TYPE, Family, Sample, counter, gauge, page_of
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import PROMETHEUS
from dovetail.runtime.messages import Report
from dovetail.runtime.monitor.callbacks import Callback
from dovetail.spec.run import Run

PATIENCE_S = 5.0
"""How long somebody may take to ask."""
Figure = tuple[str, str, float]
"""A name, what it means, and the figure."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class MetricsPage(Callback):
    """Serves `/metrics` from the first report to the last."""

    def __init__(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Listen at nothing before the run begins; `tell` hears the address."""
        self._tell = tell
        self._newest: Report | None = None
        self._server: _Server | None = None
        self._labels: dict[str, str] = {}
        self._found: Path | None = None

    def begin(self, folder: Path, run: Run) -> None:
        """Listen where the run file says."""
        host, port = run.log.metrics_address()
        self._labels = {"run": Blueprint.read(folder).id}
        try:
            self._server = _Server(host, port, self._text)
        except OSError as error:
            raise TrainingError(
                f"log.metrics: {host}:{port}: {error.strerror}", hint="give another port; 0 takes a free one"
            ) from None
        threading.Thread(target=self._server.serve_forever, name="dovetail-metrics", daemon=True).start()
        where = f"[{host}]" if ":" in host else host
        self._tell(f"figures for Prometheus: http://{where}:{self._server.server_port}/metrics")
        if host not in LOOPBACK:
            self._tell(f"warning: anybody who reaches {host} can read them")
        target = {"targets": [f"{where}:{self._server.server_port}"], "labels": self._labels}
        self._found = folder / PROMETHEUS
        with suppress(OSError):
            replace_file(self._found, json.dumps([target]).encode())

    def report(self, report: Report) -> None:
        """Show how the run goes."""
        self._newest = report

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        if self._found is not None:
            self._found.unlink(missing_ok=True)

    def _text(self) -> str:
        """Return the page, which is made when somebody asks."""
        if self._newest is None:
            return page_of(_of_run([UP, ("step", "Steps that are done.", 0)], self._labels))
        return page_of(families_of(self._newest, self._labels))


UP: Figure = ("up", "Whether the run goes on.", 1.0)


def families_of(report: Report, labels: dict[str, str]) -> list[Family]:
    """Return a report as figures; those that are not known yet are left out."""
    of_run: list[Figure] = [
        UP,
        ("step", "Steps that are done.", report.step),
        ("epoch", "The epoch, from 0.", report.epoch),
        ("samples_expected", "Samples that all epochs have together.", report.total_samples),
        ("samples_per_second", "Speed over the last seconds.", report.samples_per_s),
        ("loss", "Loss of the last seconds' samples.", report.loss),
        ("auc", "AUC of the last seconds' samples.", report.auc),
        ("learning_rate", "Of dense parameters.", report.learning_rate),
        ("gradient_norm", "Of the last step's dense gradient.", report.gradient_norm),
        ("checkpoint_step", "The step of the newest checkpoint.", report.checkpoint_step),
        ("generation", "How often processes were lost, and others went on.", report.generation),
        ("servers", "Servers that are there.", len(report.servers)),
    ]
    families = _of_run(of_run, labels)
    families.append(counter("dovetail_run_samples_total", "Samples that are done.", [(labels, report.samples)]))
    families.append(gauge("dovetail_run_state", "What the run does now.", [({**labels, "state": report.state}, 1)]))
    others: list[Sample] = [({**labels, "metric": name}, value) for name, value in report.metrics]
    families.append(gauge("dovetail_run_metric", "Other metrics of the last seconds' samples.", others))
    of_workers: list[tuple[str, str, str]] = [
        ("samples_per_second", "Speed of a worker while it computes.", "samples_per_s"),
        ("share", "A worker's part of the last steps.", "share"),
        ("idle_ratio", "The part of the time in which it waits.", "idle"),
        ("samples_total", "Samples that it has done.", "samples"),
    ]
    for name, help_, field in of_workers:
        found: list[Sample] = [({**labels, "worker": each.name}, getattr(each, field)) for each in report.workers]
        kind = counter if name.endswith("_total") else gauge
        families.append(kind(f"dovetail_worker_{name}", help_, found))
    kept: list[Sample] = [
        ({**labels, "worker": each.name}, each.kept) for each in report.workers if each.kept is not None
    ]
    families.append(gauge("dovetail_worker_rows_kept_ratio", "The part of its rows that did not travel.", kept))
    states = [({**labels, "worker": each.name, "state": each.state}, 1.0) for each in report.workers]
    families.append(gauge("dovetail_worker_state", "What a worker does now.", states))
    return families


def _of_run(figures: Sequence[Figure], labels: dict[str, str]) -> list[Family]:
    """Return figures of the run as a whole, those that are numbers."""
    return [
        gauge(f"dovetail_run_{name}", help_, [(labels, value)])
        for name, help_, value in figures
        if math.isfinite(value)
    ]


class _Server(ThreadingHTTPServer):
    """Answers with the newest text; one thread a request, none of which outlives the process."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        """Listen."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.text = text
        super().__init__((host, port), _Page)

    def handle_error(self, request: object, client_address: object) -> None:
        """Leave those alone who hang up: the run's own lines stay readable."""


class _Page(BaseHTTPRequestHandler):
    timeout = PATIENCE_S
    server: _Server

    def do_GET(self) -> None:
        """Answer."""
        is_found = self.path.partition("?")[0] == "/metrics"
        body = self.server.text().encode() if is_found else b"figures are at /metrics\n"
        self.send_response(200 if is_found else 404)
        self.send_header("Content-Type", CONTENT_TYPE if is_found else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""
