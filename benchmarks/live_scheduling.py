"""Twelve real jobs on two cores under a daemon, against what the simulator says of them.

    python benchmarks/live_scheduling.py                               # all of it, about five minutes on two cores
    python benchmarks/live_scheduling.py --part dovetail --folder F    # or some policies at a time,
    python benchmarks/live_scheduling.py --part table --folder F       # then the table and the ratio

First other jobs of the same three kinds run under the daemon: two at a time on a worker each, of unequal
length so that one starts while another works, as jobs do; then one on both workers. They give, for each kind, the
samples a second on one worker (beside another job) and on two, and what a job takes besides (from its start to its end,
less its samples over its speed: loading, first step, last checkpoint), and how long a second worker takes to come. Jobs
start on a worker beside another job, so what they take besides is the mean of those that did. The
simulator is given these and the twelve jobs' samples and times of submission, all known before the first of them runs,
and predicts the mean time from submission to completion. Then `dovetail serve` runs the twelve, its policy asking for
workers, and the daemon's own record says when each was done. It is the daemon of the jobs before, started again with
the policy in question, so it has seen how fast the kinds are.

While a worker is on its way the job goes on with those it has. So what a resize costs in the simulation is the time
until the worker is there, times the part of the speed that is missing meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dovetail.runtime.folder import METRICS
from dovetail.scheduler.registry import make_policy
from dovetail.serve.client import Client
from dovetail.serve.submission import Submission
from dovetail.simulator.engine import simulate
from dovetail.spec.job import Job
from dovetail.spec.workload import NodeGroup, Workload

MEASURE = ("--measure-s", "2")
POLICIES = ("fixed-1", "doubling", "dovetail")
DOVETAIL = [sys.executable, "-c", "from dovetail.cli.main import main; main()"]
KINDS: dict[str, dict[str, Any]] = {
    "narrow": {"hidden": [256, 256], "width": 4},
    "middle": {"hidden": [512, 512], "width": 4},
    "wide": {"hidden": [1024, 512], "width": 4},
}
MEASURED_S, JOB_S = 4.0, (2.0, 4.0, 8.0, 3.0)
"""How long the jobs that are measured work on one worker; and the twelve, a kind after the other."""
GAP_S = 3.0
"""Between two submissions."""
WAIT_S = 230.0
FIRST_GUESS = {"narrow": 60_000.0, "middle": 30_000.0, "wide": 20_000.0}
"""Samples a second, to make the measured jobs of about the right length."""
BATCH = 2_000


class Daemon:
    """`dovetail serve` on two workers, in a folder of its own."""

    def __init__(self, folder: Path, policy: str) -> None:
        """Start it."""
        self.folder = folder
        with (folder.parent / f"{folder.name}.out").open("ab") as out:
            self._process = subprocess.Popen(
                [*DOVETAIL, "serve", "--folder", str(folder), "--nodes", "cpu:2x1", "--policy", policy, *MEASURE],
                stdout=out,
                stderr=out,
            )
        self.client = Client(folder, wait_s=60.0)
        self.client.ask("GET", "/v1/cluster")

    def submit(self, name: str, kind: str, samples: int, **facts: Any) -> str:
        """Hand in a job; return its id."""
        paths = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
        submission = Submission(name=name, run=run_of(kind, samples), kind=kind, environment=paths, **facts)
        return str(self.client.submit(submission)["id"])

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Return all jobs by id."""
        return {job["id"]: job for job in self.client.ask("GET", "/v1/jobs")["jobs"]}

    def wait(self) -> dict[str, dict[str, Any]]:
        """Wait until none waits or runs."""
        until_s = time.monotonic() + WAIT_S
        while (counts := self.client.ask("GET", "/v1/cluster")["jobs"])["queued"] + counts["running"]:
            if time.monotonic() > until_s:
                sys.exit(f"error: jobs were not done after {WAIT_S:.0f} s: {self.jobs()}")
            time.sleep(0.3)
        found = self.jobs()
        if bad := [job for job in found.values() if job["state"] != "done"]:
            sys.exit(f"error: {bad}")
        return found

    def end(self) -> None:
        """End the daemon."""
        self._process.terminate()
        self._process.wait(20)


def run_of(kind: str, samples: int) -> dict[str, Any]:
    """Return the run file of a job."""
    options = {"num_rows": 26_000, **KINDS[kind]}
    return {
        "model": {"name": "ctr-dnn", "options": options},
        "data": {"options": {"truth": "logistic", "rows_per_slot": 1_000}, "samples": samples},
        "training": {"batch": BATCH},
        "optimizer": {"name": "adam", "learning_rate": 0.01},
        "worker": [{"name": "worker"}],
        "checkpoint": {"every_s": 3600.0},
    }


# -- before the runs ---------------------------------------------------------------------------------------------------


def measure(folder: Path) -> dict[str, Any]:
    """Return speeds on one worker beside another job and on two, what a job takes besides, and what a resize takes."""
    found: dict[str, Any] = {"speed": {}, "besides_s": []}
    daemon = Daemon(folder, "fixed-1")
    try:
        sizes = {kind: int(MEASURED_S * FIRST_GUESS[kind]) // BATCH * BATCH for kind in KINDS}
        pairs = [
            daemon.submit(f"{kind}-{n}", kind, round((0.6 + 0.8 * n) * sizes[kind]), max_workers=1)
            for n in range(2)
            for kind in KINDS
        ]
        pair_jobs = daemon.wait()
        for kind in KINDS:
            speeds = [speed_of(pair_jobs[job]) for job in pairs if job.startswith(kind)]
            found["speed"][kind] = {"1": statistics.mean(speeds)}
        wholes = {kind: daemon.submit(f"{kind}-two", kind, sizes[kind], min_workers=2) for kind in KINDS}
        jobs = daemon.wait()
        for kind, job in wholes.items():
            found["speed"][kind]["2"] = speed_of(jobs[job])
        found["besides_s"] = [besides_s(pair_jobs[job], speed_of(pair_jobs[job])) for job in pairs]
        grows = daemon.submit("grows", "middle", 2 * sizes["middle"], max_workers=1)
        while not daemon.jobs()[grows]["done"]:
            time.sleep(0.05)
        begun_s = time.monotonic()
        daemon.client.ask("POST", f"/v1/jobs/{grows}/resize", {"workers": 2})
        while daemon.jobs()[grows]["present"] != 2:
            time.sleep(0.02)
        found["comes_s"] = time.monotonic() - begun_s
        daemon.wait()
    finally:
        daemon.end()
    return found


def speed_of(job: dict[str, Any]) -> float:
    """Return the samples a second of a job while it trained: lines before its first step are about loading."""
    lines = [json.loads(line) for line in (Path(job["folder"]) / "run" / METRICS).read_text().splitlines()]
    first, last = next(line for line in lines if line["samples"] > 0), lines[-1]
    if first is last:
        sys.exit(f"error: {job['id']} was over before it could be measured; hint: raise MEASURED_S")
    return float((last["samples"] - first["samples"]) / (last["unix_s"] - first["unix_s"]))


def besides_s(job: dict[str, Any], speed: float) -> float:
    """Return what a job took besides its samples."""
    return float(job["finished_s"] - job["started_s"] - job["total"] / speed)


def workload(known: dict[str, Any]) -> Workload:
    """Return the twelve jobs as the simulator is told of them."""
    jobs = []
    for number in range(12):
        kind = list(KINDS)[number % 3]
        speed = known["speed"][kind]
        work = max(1, round(JOB_S[(number // 3 + number) % 4] * speed["1"] / BATCH)) * BATCH
        missing = max(0.0, 1.0 - speed["1"] / speed["2"])
        jobs.append(
            Job(
                id=f"{kind}-{number}",
                submit_s=GAP_S * number,
                work=float(work),
                speed={"cpu": speed},
                kind=kind,
                restart_s=statistics.mean(known["besides_s"]),
                resize_s=known["comes_s"] * missing,
            )
        )
    return Workload(nodes=(NodeGroup(type="cpu", workers=2),), jobs=tuple(jobs), round_s=30.0)


# -- the runs ----------------------------------------------------------------------------------------------------------


def live(folder: Path, policy: str, known: dict[str, Any]) -> dict[str, Any]:
    """Run the twelve jobs under a policy; return when each was submitted and done."""
    daemon = Daemon(folder, policy)
    try:
        begun_s, ids = time.monotonic(), []
        for job in workload(known).jobs:
            time.sleep(max(0.0, begun_s + job.submit_s - time.monotonic()))
            ids.append(daemon.submit(job.id, job.kind or "", int(job.work)))
        done = {name: job for name, job in daemon.wait().items() if name in ids}
        events = [event for event in daemon.client.ask("GET", "/v1/events")["events"] if event["job"] in ids]
    finally:
        daemon.end()
    seconds = {name: job["finished_s"] - job["submitted_s"] for name, job in done.items()}
    counts = {what: sum(event["what"] == what for event in events) for what in ("resized", "stopped")}
    return {"mean_s": statistics.mean(seconds.values()), "seconds": seconds, "known": known, **counts}


def predicted_s(policy: str, known: dict[str, Any]) -> float:
    """Return the mean completion time that the simulator says."""
    return float(simulate(workload(known), make_policy(policy), name=policy).outcome.mean_jct_s)


def main() -> None:
    """Measure, run, and print the table; the ratio of the worst prediction comes last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=(*POLICIES, "table"), nargs="*", default=(*POLICIES, "table"))
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        folder = arguments.folder or Path(own)
        folder.mkdir(exist_ok=True, parents=True)
        wanted = [policy for policy in POLICIES if policy in arguments.part]
        known = measure(folder / "-".join(wanted)) if wanted else {}
        for policy in wanted:
            found = live(folder / "-".join(wanted), policy, known)
            (folder / f"{policy}.json").write_text(json.dumps(found))
        if "table" in arguments.part:
            print_table(folder)


def print_table(folder: Path) -> None:
    """Print what was known, what was predicted and what came of it."""
    lines, ratios = [], []
    for policy in POLICIES:
        found = json.loads((folder / f"{policy}.json").read_text())
        known = found["known"]
        speeds = "; ".join(f"{kind} {each['1']:,.0f} and {each['2']:,.0f}" for kind, each in known["speed"].items())
        print(f"{policy}: samples/s on one worker and on two: {speeds}")
        print(f"  besides its samples a job takes {statistics.mean(known['besides_s']):.1f} s", end="; ")
        print(f"a second worker comes after {known['comes_s']:.1f} s")
        told_s = predicted_s(policy, known)
        ratios.append(found["mean_s"] / told_s)
        changes = f"{found['resized']} | {found['stopped']}"
        lines.append(f"| {policy} | {told_s:.1f} s | {found['mean_s']:.1f} s | {ratios[-1]:.2f} | {changes} |")
    print("\n| policy | mean completion, predicted | measured | measured / predicted | resizes | stops |")
    print("|---|---|---|---|---|---|", *lines, sep="\n")
    print(f"\nratio {max(ratios, key=lambda ratio: abs(ratio - 1.0)):.2f}")


if __name__ == "__main__":
    main()
