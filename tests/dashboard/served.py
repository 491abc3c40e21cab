"""The dashboard as users start it, and a browser that looks at it; runs as folders that a real training wrote."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.serve.daemons import DOVETAIL, PATHS
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PROBLEM = ROOT / "examples" / "problems" / "ctr-dnn.toml"
WORKLOAD = ROOT / "examples" / "workloads" / "two-jobs.json"
CHROMIUM = Path("/usr/bin/chromium")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Served:
    """A dashboard in a process of its own."""

    def __init__(self, out: Path, *words: object) -> None:
        """Start it, and wait until it says where it is."""
        self._out = out.open("ab+")
        self.log = out
        self.process = subprocess.Popen(
            [*DOVETAIL, "dashboard", *map(str, words), "--port", "0"],
            stdout=self._out,
            stderr=self._out,
            env={**os.environ, "PYTHONPATH": PATHS},
        )
        wait_until(lambda: "look at" in out.read_text() or self.process.poll() is not None, out.read_text)
        found = re.search(r"http://[^\s]+", out.read_text())
        assert found, out.read_text()
        self.url = found[0]
        self.port = int(self.url.rpartition(":")[2])

    def ask(
        self, path: str, *, method: str = "GET", body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            line.request(method, path, body=body or None, headers=headers or {})
            answer = line.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            line.close()

    def task(self, **task: Any) -> tuple[int, dict[str, Any]]:
        """Return status and answer of a task."""
        status, _, text = self.ask(
            "/api/task", method="POST", body=msgspec.json.encode(task), headers={"Content-Type": "application/json"}
        )
        return status, msgspec.json.decode(text)

    def end(self) -> int:
        """Have it end as Ctrl-C does; return its status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        status = self.process.wait(60)
        self._out.close()
        return status


@contextmanager
def served(folder: Path, *words: object) -> Iterator[Served]:
    """Serve the dashboard for a while."""
    dashboard = Served(folder / "dashboard.out", *words)
    try:
        yield dashboard
    finally:
        dashboard.end()


@contextmanager
def browser() -> Iterator[Any]:
    """Give a real browser; where there is none, or nothing to drive it with, the test is skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(QUIET))
        try:
            yield found
        finally:
            found.close()


class Looker:
    """A page in a browser, and all that it complained of or asked for."""

    def __init__(self, chromium: Any, *, width: int = 1280, theme: str = "light") -> None:
        """Open an empty page."""
        self.context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda problem: self.complaints.append(str(problem)))
        self.page.on("dialog", self._dialog)
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _dialog(self, dialog: Any) -> None:
        if dialog.type != "confirm":
            self.complaints.append(f"a dialog: {dialog.message}")
        dialog.accept()

    def close(self) -> None:
        """Close it."""
        self.context.close()
