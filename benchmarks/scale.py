"""Ten thousand nodes and fifty thousand jobs: what a decision takes, and what the daemon does a second.

    python benchmarks/scale.py decisions            # every policy at 100, 1,000 and 10,000 nodes, five jobs a node
    python benchmarks/scale.py daemon               # the daemon's store, its HTTP API, a look at running jobs, a view

Nodes have eight workers each, of two types. Jobs are made from a seed, with speeds known up to 16 workers. `first` is a
decision with every job waiting; `next` is one after that was carried out, a job has ended and another has come: what a
busy cluster does all day. A policy that takes longer than `--most-s` at one size is not asked at the next.

The daemon's figures are of the real store, API and controller on this machine, with jobs that only hold their locks:
what they compute is not counted. One core each for the daemon and those who ask it.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import msgspec
import numpy as np

from dovetail.scheduler.cluster import Cluster
from dovetail.scheduler.job_table import JobTable, job_table
from dovetail.scheduler.policy import Policy
from dovetail.scheduler.registry import POLICIES, make_policy
from dovetail.scheduler.view import ClusterView
from dovetail.serve.client import Client
from dovetail.serve.controller import Controller
from dovetail.serve.local import LOCK, LocalLauncher
from dovetail.serve.outlook import JobHistory, outlook
from dovetail.serve.progress import PROGRESS
from dovetail.serve.settings import DaemonSettings
from dovetail.serve.store import JobStore
from dovetail.serve.submission import Submission
from dovetail.simulator.traces.make import make_workload
from dovetail.spec.workload import NodeGroup

SIZES = (100, 1_000, 10_000)
JOBS_A_NODE = 5
NODE_WORKERS = 8
SEED = 200


class Known:
    """The truth, for a table of jobs of which nothing is done."""

    def __init__(self, table: JobTable) -> None:
        """Look at the table."""
        self.left, self.speed, self.batch_speed = table.work.copy(), table.speed, table.batch_speed
        self.left_error = self.speed_error = np.zeros(len(table.jobs))


def nodes_of(count: int) -> tuple[NodeGroup, ...]:
    """Return nodes, half of each type."""
    half = count // 2
    return tuple(NodeGroup(type=name, workers=NODE_WORKERS, count=half) for name in ("v100", "k80"))


def seconds(act: Callable[[], object], times: int = 1) -> float:
    """Return the least seconds that something takes."""
    took = []
    for _ in range(times):
        begun_s = time.perf_counter()
        act()
        took.append(time.perf_counter() - begun_s)
    return min(took)


def decide_twice(policy: Policy, table: JobTable) -> tuple[float, float, float, int]:
    """Return the seconds of a first decision, of carrying it out, and of the next, and how many jobs run."""
    cluster, known = Cluster(table), Known(table)
    count = len(table.jobs)
    for row in range(count - 1):
        cluster.arrive(row)
    now_s = float(table.submit_s[-1])
    view = cluster.view(known)
    begun_s = time.perf_counter()
    wanted = policy.decide(view, now_s)
    first_s = time.perf_counter() - begun_s
    begun_s = time.perf_counter()
    _, starts = cluster.changes(wanted)
    for start in starts:
        cluster.hold(start, now_s)
    apply_s = time.perf_counter() - begun_s
    num_running = len(cluster.running)
    now_s += 600.0
    cluster.advance(now_s)
    known.left[cluster.running] *= 0.9
    cluster.finish(int(cluster.running[num_running // 2]), now_s)
    cluster.arrive(count - 1)
    view: ClusterView = cluster.view(known)
    next_s = seconds(lambda: policy.decide(view, now_s))
    return first_s, apply_s, next_s, num_running


def decisions(names: list[str], most_s: float, sizes: list[int]) -> None:
    """Print what every policy takes."""
    print(f"{'policy':<12}{'nodes':>8}{'jobs':>8}{'run':>8}{'first s':>10}{'carry out s':>13}{'next s':>10}")
    too_slow: set[str] = set()
    small = job_table(make_workload(nodes=nodes_of(20), num_jobs=100, seed=SEED, with_loss=False))
    for num_nodes in sizes:
        num_jobs = num_nodes * JOBS_A_NODE
        table = job_table(make_workload(nodes=nodes_of(num_nodes), num_jobs=num_jobs, seed=SEED, with_loss=False))
        for name in names:
            if name in too_slow:
                print(f"{name:<12}{num_nodes:>8,}{num_jobs:>8,}{'-':>8}{'not asked':>10}", flush=True)
                continue
            decide_twice(make_policy(name), small)  # kernels are loaded
            first_s, apply_s, next_s, running = decide_twice(make_policy(name), table)
            print(
                f"{name:<12}{num_nodes:>8,}{num_jobs:>8,}{running:>8,}{first_s:>10.3f}{apply_s:>13.3f}{next_s:>10.3f}",
                flush=True,
            )
            if max(first_s, next_s) > most_s:
                too_slow.add(name)


def submission(number: int, *, most: int | None = 16, kinds: int = 20) -> Submission:
    """Return a job that does nothing."""
    return Submission(
        name="job", command=["true"], user=f"user{number % 50}", max_workers=most, kind=f"{number % kinds}"
    )


def measure_store(folder: Path, num_jobs: int) -> None:
    """Print what the store does a second, and with many jobs in it."""
    store = JobStore(folder / "state.sqlite")
    count = 500
    took_s = seconds(lambda: [store.submit(submission(number)) for number in range(count)])
    print(f"submissions to the store, each synced to the disk: {count / took_s:,.0f} a second")
    with store.change() as db:  # the rest in one go, or it would take minutes
        rows = db.execute("SELECT user, submission FROM jobs WHERE number = 1").fetchone()
        db.executemany(
            "INSERT INTO jobs (id, user, state, submission, submitted_s, since_s) VALUES (?, ?, 'queued', ?, ?, ?)",
            [(f"job-x{n}", rows[0], rows[1], time.time(), time.time()) for n in range(num_jobs - count)],
        )
    print(f"reading {num_jobs:,} waiting jobs: {seconds(lambda: store.jobs(('queued',)), 2):.2f} s")
    took_s = seconds(lambda: store.submit(submission(1)), 5)
    print(f"submitting one more beside {num_jobs:,}: {took_s * 1e3:.1f} ms")
    store.close()


def measure_outlook(folder: Path, sizes: list[int]) -> None:
    """Print how long the daemon takes to work out what a policy is told."""
    for num_nodes in sizes:
        num_jobs, nodes = num_nodes * JOBS_A_NODE, nodes_of(num_nodes)
        store = JobStore(folder / f"outlook-{num_nodes}.sqlite")
        with store.change() as db:
            db.executemany(
                "INSERT INTO jobs (id, user, state, submission, submitted_s, since_s, type, workers, attempt) "
                "VALUES (?, 'u', ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        f"job-{n}",
                        "running" if n < num_nodes else "queued",
                        msgspec.json.encode(submission(n)),
                        1e9 + n,
                        1e9 + n,
                        "v100" if n < num_nodes else None,
                        4 if n < num_nodes else 0,
                        int(n < num_nodes),
                    )
                    for n in range(num_jobs)
                ],
            )
        jobs = store.jobs(("running", "queued"))
        seen = JobHistory(speeds=[(str(n % 20), "v100", 1 + n % 8, 10.0 + n % 7) for n in range(2000)])
        took_s = seconds(functools.partial(outlook, nodes, jobs, {}, seen, 2e9, taken={}))
        print(
            f"a view of {num_jobs:,} jobs on {num_nodes:,} nodes, {num_nodes:,} of them running: {took_s:.2f} s",
            flush=True,
        )
        store.close()


def measure_looks(folder: Path, count: int = 500) -> None:
    """Print what one look at each running job takes."""
    (folder / "looks").mkdir()
    store = JobStore(folder / "looks" / "state.sqlite")
    settings = DaemonSettings(nodes=(NodeGroup(type="cpu", workers=count * 2, count=1),), policy="fifo")
    controller = Controller(folder / "looks", store, LocalLauncher(), make_policy("fifo"), settings)
    held = []
    for number in range(count):
        job, _ = store.submit(submission(number))
        store.begin(job.id, type_="cpu", workers=1)
        place = controller.folder_of(job.id)
        place.mkdir(parents=True)
        lock = os.open(place / LOCK, os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        held.append(lock)
        (place / PROGRESS).write_text('{"unix_s": 1.0, "samples": 5.0, "total_samples": 10.0, "loss": 0.5}\n')
    controller.turn()
    took_s = seconds(controller.turn, 3)
    print(f"a look at each of {count} running jobs: {took_s / count * 1e6:,.0f} us a job")
    for lock in held:
        os.close(lock)
    store.close()


def measure_http(folder: Path, count: int = 400, threads: int = 4) -> None:
    """Print submissions a second over HTTP, to a daemon that starts nothing."""
    place = folder / "served"
    words = ["serve", "--folder", str(place), "--nodes", "cpu:1x1"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from dovetail.cli.main import main; main()", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        client = Client(place, wait_s=60.0)
        client.ask("POST", "/v1/drain", {"state": "on"})

        def hand_in(mine: range) -> None:
            own = Client(place)
            for number in mine:
                own.submit(submission(number))

        def all_at_once() -> None:
            each = [threading.Thread(target=hand_in, args=(range(n, count, threads),)) for n in range(threads)]
            for thread in each:
                thread.start()
            for thread in each:
                thread.join()

        took_s = seconds(all_at_once)
        print(f"submissions over HTTP by {threads} clients at once: {count / took_s:,.0f} a second")
        listed_s = seconds(lambda: client.ask("GET", "/v1/jobs?last=400"), 3)
        print(f"a list of 400 jobs over HTTP: {listed_s * 1e3:.0f} ms")
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["decisions", "daemon"])
    parser.add_argument("--policies", nargs="+", default=[name for name in POLICIES if name != "exact"])
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--most-s", type=float, default=20.0)
    asked = parser.parse_args()
    if asked.what == "decisions":
        decisions(asked.policies, asked.most_s, asked.sizes)
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        measure_store(place, 50_000)
        measure_looks(place)
        measure_http(place)
        measure_outlook(place, asked.sizes)


if __name__ == "__main__":
    main()
