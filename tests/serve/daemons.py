"""A daemon as users start it, and jobs for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dovetail.errors import DovetailError
from dovetail.scheduler.view import Allocation, ClusterView
from dovetail.serve.client import Client
from dovetail.serve.submission import Submission
from dovetail.spec.run import Run

ROOT = Path(__file__).parent.parent.parent
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
DOVETAIL = [sys.executable, "-c", "from dovetail.cli.main import main; main()"]
OVER = ("done", "failed", "cancelled")

ONCE = """
import os, sys, time
folder = os.environ["DOVETAIL_JOB_FOLDER"]
mark = os.path.join(folder, "here")
os.close(os.open(mark, os.O_CREAT | os.O_EXCL))  # fails where another of this job runs
time.sleep(float(sys.argv[1]))
with open(os.path.join(folder, "ran"), "a") as file:
    file.write("x")
os.unlink(mark)
"""
"""A program that fails where it runs twice at once."""
WAITS_FOR = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
with open(sys.argv[1] + "-" + os.environ["DOVETAIL_JOB"], "a") as file:
    file.write("x")
"""
"""A program that is over once a file is there, beside which it says so."""


class StartsNothing:
    """A policy for daemons that are asked all sorts of things and must not run any of them."""

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        nothing = np.empty(0, np.int64)
        return Allocation(rows=nothing, types=nothing, workers=nothing)


class Daemon:
    """`dovetail serve` in a process of its own."""

    def __init__(
        self, folder: Path, *words: str, before: tuple[str, ...] = (), environment: dict[str, str] | None = None
    ) -> None:
        """Serve a folder; the words `before` those of the command confine it, say."""
        self.folder, self._words, self._before = folder, words, before
        self._environment = environment or {}
        self.client = Client(folder, wait_s=90.0)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Daemon:
        with (self.folder.parent / f"{self.folder.name}.out").open("ab") as out:
            self.process = subprocess.Popen(
                [*self._before, *DOVETAIL, "serve", "--folder", str(self.folder), *self._words],
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONPATH": PATHS, **self._environment},
            )
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End the daemon, and whatever jobs it still has."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
        for record in self.folder.glob("jobs/*/process-*.json"):
            facts = json.loads(record.read_bytes())
            path = Path(f"/proc/{facts['process']}/stat")
            if path.exists() and int(path.read_text().rpartition(")")[2].split()[19]) == facts["ticks"]:
                os.killpg(facts["process"], signal.SIGKILL)

    def __enter__(self) -> Daemon:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def submit(self, **facts: Any) -> dict[str, Any]:
        return self.client.submit(Submission(**{"name": "job", "environment": {"PYTHONPATH": PATHS}, **facts}))

    def job(self, job: str) -> dict[str, Any]:
        return self.client.ask("GET", f"/v1/jobs/{job}")

    def jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.ask("GET", "/v1/jobs")["jobs"]
        return found

    def wait(self, job: str, is_so: Callable[[dict[str, Any]], bool], timeout_s: float = 150.0) -> dict[str, Any]:
        """Wait until something is so of a job."""
        until_s = time.monotonic() + timeout_s
        while not is_so(found := self.job(job)):
            if time.monotonic() > until_s:
                log = self.client.ask("GET", f"/v1/jobs/{job}/log")["text"]
                raise AssertionError(f"not so after {timeout_s} s: {found}\n{log}")
            time.sleep(0.1)
        return found

    def wait_over(self, job: str, timeout_s: float = 150.0) -> dict[str, Any]:
        return self.wait(job, lambda facts: facts["state"] in OVER, timeout_s)

    def log(self) -> list[dict[str, Any]]:
        """Return what the daemon has written down."""
        return [json.loads(line) for line in (self.folder / "log.jsonl").read_text().splitlines()]

    def say(self, *words: str, fails: bool = False) -> str:
        """Run a command of the CLI; return what it prints."""
        done = subprocess.run(
            [*DOVETAIL, *words],
            env={**os.environ, "PYTHONPATH": PATHS, "DOVETAIL_SERVER": str(self.folder)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done.stdout if not fails else done.stderr


def python(program: str, *words: str) -> list[str]:
    """Return the words that run a program."""
    return [sys.executable, "-S", "-c", program, *words]


def table_of(run: Run) -> dict[str, Any]:
    """Return a run as a file would hold it."""
    found: dict[str, Any] = json.loads(msgspec.json.encode(run))
    return found


def refused(call: Callable[[], Any]) -> DovetailError:
    """Return what a call is refused with."""
    try:
        call()
    except DovetailError as error:
        return error
    raise AssertionError("it was taken")
