"""A night of `dovetail serve` in a few minutes: jobs, resizes, cancels, kills of it, clocks that jump, disks that fill.

    sudo python benchmarks/soak.py                  # 200 jobs, 50 resizes, 50 cancels, 20 kills, 5 jumps, 3 full disks
    sudo python benchmarks/soak.py --scale 0.1      # a tenth of it, to try

The daemon's folder is a small disk of its own (a tmpfs), its clock is set by what is preloaded for it alone, and what
happens is drawn from `--seed`. Jobs are short programs that go on from where they were stopped and find out whether
they run twice at once, some of which fail or leave children, and two runs of `dovetail train` that count their samples
and are resized. At the end every job has to be where it should, every sample counted once, and nobody left running. It
needs root, and gcc. A table of what was done and seen comes last.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from dovetail.errors import DovetailError
from testbed.faults import Faults, why_no_faults
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import make_run
from tests.serve.daemons import OVER, Daemon, python, table_of

COUNTS = {"job": 200, "resize": 50, "cancel": 50, "kill": 20, "clock jump": 5, "full disk": 3}
WORKERS = 6
DISK = "96m"
MOST_S = 520.0
"""No soak takes longer, or something waits without end."""

SHORT = """
import fcntl, os, signal, subprocess, sys, time
place, kind, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
name = os.path.join(place, os.environ["DOVETAIL_JOB"])
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
lock = open(name + ".lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open(name + ".twice", "w").close()
step = int(open(name).read()) if os.path.exists(name) else 0
while step < steps and not asked:
    time.sleep(0.1)
    step += 1
    with open(name + ".new", "w") as file:
        file.write(str(step))
    os.replace(name + ".new", name)
if step == steps:
    with open(name + ".ends", "a") as file:
        file.write("x")
    if kind == "fails":
        sys.exit("error: it was to fail")
    if kind == "leaves":
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
"""
"""A program of so many steps of a tenth of a second, which says where it is outside the small disk."""


@dataclass
class Seen:
    """What was seen of the daemon's processes."""

    bytes_: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def look(self, process: int) -> None:
        """Take its memory and open files."""
        with suppress(psutil.Error):
            found = psutil.Process(process)
            self.bytes_.append(found.memory_info().rss)
            self.files.append(found.num_fds())


class Soak:
    """One daemon, and what is done to it."""

    def __init__(self, folder: Path, draw: random.Random, *, grace_s: float = 6.0) -> None:
        """Get ready; nothing is started yet."""
        self.folder, self.draw = folder, draw
        self.disk, self.place = folder / "disk", folder / "place"
        self.place.mkdir()
        self.over = folder / "over"
        self.faults = Faults(folder)
        words = ("--nodes", f"cpu:{WORKERS}x1", "--round-s", "2", "--grace-s", f"{grace_s}", "--measure-s", "1")
        self.daemon = Daemon(self.disk / "daemon", *words, environment=self.faults.environment)
        self.kinds: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.runs: list[str] = []
        self.done: Counter[str] = Counter()
        self.refused = 0
        self.lives: list[Seen] = []

    def start(self) -> None:
        """Start the daemon."""
        self.daemon.start()
        self.lives.append(Seen())
        self.daemon.client.ask("GET", "/v1/cluster")

    def look(self) -> None:
        """See how the daemon does."""
        assert self.daemon.process is not None
        self.lives[-1].look(self.daemon.process.pid)

    # -- what is done --------------------------------------------------------------------------------------------------

    def do(self, what: str) -> None:
        """Do one thing; what a full disk refuses is counted, and not done."""
        try:
            getattr(self, f"_{what.replace(' ', '_')}")()
            self.done[what] += 1
        except DovetailError as error:
            if "cannot be written" not in str(error):
                raise
            self.refused += 1

    def _job(self) -> None:
        kind = self.draw.choices(["plain", "fails", "leaves"], [17, 1, 2])[0]
        words = python(SHORT, str(self.place), kind, str(self.draw.randint(2, 12)))
        self.kinds[self.daemon.submit(name="short", command=words, max_workers=1)["id"]] = kind

    def train(self) -> None:
        """Submit a run that counts, and goes on until it may end."""
        model = slow_counting(0.002, until=self.over)
        run = table_of(make_run(model=model, optimizer=PLAIN, reduction="sum", workers=1, samples=400_000))
        self.runs.append(self.daemon.submit(name="counting", run=run, max_workers=2, priority=20.0)["id"])

    def _resize(self) -> None:
        job, workers = self.draw.choice(self.runs), self.draw.randint(1, 3)
        self.daemon.client.ask("POST", f"/v1/jobs/{job}/resize", {"workers": workers})

    def _cancel(self) -> None:
        job = self.draw.choice([*self.kinds])
        self.daemon.client.ask("POST", f"/v1/jobs/{job}/cancel", {})
        self.cancelled.add(job)

    def _kill(self) -> None:
        self.daemon.kill()
        self.start()

    def _clock_jump(self) -> None:
        self.faults.set_clock(self.draw.choice([3600, -3600, 86_400, -86_400, 10_000_000]))

    def _full_disk(self) -> None:
        filler = self.disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        try:
            for _ in range(4):
                with suppress(DovetailError):
                    self._job()
                time.sleep(1.0)
        finally:
            filler.unlink()

    # -- what must hold ------------------------------------------------------------------------------------------------

    def finish(self, until_s: float) -> dict[str, dict[str, Any]]:
        """Have everything come to its end; return the jobs."""
        self.over.touch()
        for job in self.runs:
            self.daemon.client.ask("POST", f"/v1/jobs/{job}/resize", {"workers": 2})
        while any(job["state"] not in OVER for job in self._jobs().values()):
            if time.monotonic() > until_s:
                left = [job for job in self._jobs().values() if job["state"] not in OVER]
                raise SystemExit(f"{len(left)} jobs were not over in time: {left[:3]}")
            time.sleep(1.0)
            self.look()
        return self._jobs()

    def _jobs(self) -> dict[str, dict[str, Any]]:
        found = self.daemon.client.ask("GET", "/v1/jobs?last=1000")["jobs"]
        return {job["id"]: job for job in found}

    def problems(self, jobs: dict[str, dict[str, Any]]) -> list[str]:
        """Return what is not as it should be."""
        found = [f"{job} is lost" for job in (*self.kinds, *self.runs) if job not in jobs]
        wanted = {"plain": "done", "leaves": "done", "fails": "failed"}
        for job, kind in self.kinds.items():
            state = jobs[job]["state"]
            if state != wanted[kind] and not (state == "cancelled" and job in self.cancelled):
                found.append(f"{job}, which {kind}, is {state}: {jobs[job]['error']}")
            if (self.place / f"{job}.twice").exists():
                found.append(f"{job} ran twice at once")
            ends = self.place / f"{job}.ends"
            if state == "done" and not ends.exists():
                found.append(f"{job} is done, and did not come to its end")
        for job in self.runs:
            if jobs[job]["state"] != "done":
                found.append(f"{job} is {jobs[job]['state']}: {jobs[job]['error']}")
                continue
            try:
                assert_each_sample_counts_once(Path(jobs[job]["folder"]) / "run")
            except AssertionError as error:
                found.append(f"{job}: {error}")
        return [*found, *(f"left running: {name}" for name in self._left())]

    def _left(self) -> list[str]:
        """Return processes of jobs that are still there."""
        mark, left = f"DOVETAIL_JOB_FOLDER={self.disk}".encode(), []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                    left.append(f"{process.pid} {process.name()}")
        return left


def main() -> int:
    """Soak, and show what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="so much of everything")
    parser.add_argument("--pause-s", type=float, default=0.5, help="between two things, on average")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or why_no_faults():
        raise SystemExit(f"a soak needs root, and gcc: {why_no_faults() or 'not root'}")
    draw = random.Random(arguments.seed)
    counts = {what: max(1, round(count * arguments.scale)) for what, count in COUNTS.items()}
    things = [what for what, count in counts.items() if what != "kill" for _ in range(count)]
    draw.shuffle(things)
    for place in draw.sample(range(int(0.7 * len(things))), counts["kill"]):  # the last daemon lives longest
        things.insert(place, "kill")
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    soak = Soak(folder, draw)
    soak.disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0700", "tmpfs", str(soak.disk)], check=True)
    begun_s = time.monotonic()
    try:
        soak.start()
        for _ in range(2):
            soak.train()
        soak.do("job")
        for what in things:
            soak.do(what)
            soak.look()
            if time.monotonic() - begun_s > MOST_S:
                raise SystemExit(f"not done after {MOST_S:.0f} s: {dict(soak.done)}")
            time.sleep(draw.expovariate(1.0 / arguments.pause_s))
        jobs = soak.finish(begun_s + MOST_S)
        problems = soak.problems(jobs)
        show(soak, jobs, problems, time.monotonic() - begun_s)
    finally:
        soak.daemon.stop()
        subprocess.run(["umount", "-l", str(soak.disk)], check=False)
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if problems else 0


def show(soak: Soak, jobs: dict[str, dict[str, Any]], problems: list[str], took_s: float) -> None:
    """Print the table."""
    lines = sum(1 for _ in (soak.daemon.folder / "log.jsonl").open())
    states = Counter(job["state"] for job in jobs.values())
    print("| what | how often |\n|---|---|")
    for what, count in soak.done.items():
        print(f"| {what} | {count} |")
    print(f"| refused, as the disk was full | {soak.refused} |")
    print(f"| starts of jobs | {sum(job['attempt'] for job in jobs.values())} |")
    print(f"| lines in the daemon's log | {lines:,} |")
    print(f"\njobs: {', '.join(f'{count} {state}' for state, count in sorted(states.items()))}; {took_s:.0f} s\n")
    print("| life of the daemon | looks | MB first | at a third | two thirds | last | files first | last | most |")
    print("|---" * 9 + "|")
    lives = [(number, life) for number, life in enumerate(soak.lives, 1) if len(life.bytes_) > 1]
    for number, life in [*lives[:-1][-3:], lives[-1]]:
        sizes, files = [round(each / 1e6) for each in life.bytes_], life.files
        parts = (sizes[0], sizes[len(sizes) // 3], sizes[2 * len(sizes) // 3], sizes[-1])
        shown = (number, len(sizes), *parts, files[0], files[-1], max(files))
        print(f"| {' | '.join(map(str, shown))} |")
    for problem in problems:
        print(f"problem: {problem}")
    print(f"problems: {len(problems)}")


if __name__ == "__main__":
    sys.exit(main())
