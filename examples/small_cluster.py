"""A small cluster on this machine: a daemon, three jobs, one of them resized while it runs.

python examples/small_cluster.py out/cluster
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from dovetail.serve.client import Client

RUN = Path(__file__).parent / "runs" / "ctr-dnn.toml"
DOVETAIL = [sys.executable, "-c", "from dovetail.cli.main import main; main()"]


def main(folder: str) -> None:
    """Serve, submit, resize, wait."""
    shutil.rmtree(folder, ignore_errors=True)
    where = ["--folder", folder]
    daemon = subprocess.Popen([*DOVETAIL, "serve", *where, "--nodes", "cpu:4x1", "--policy", "fixed-1"])
    try:
        wait_until((Path(folder) / "server.json").exists)
        sizes = {"first": 400_000, "second": 20_000, "third": 20_000}
        for name, samples in sizes.items():
            say("submit", RUN, *where, "--name", name, "--set", f"data.samples={samples}")
        client = Client(Path(folder))  # from Python: the same API
        wait_until(lambda: (client.ask("GET", "/v1/jobs/first-1")["done"] or 0) > 0)
        say("resize", "first-1", "2", *where)  # the policy gave it one
        wait_until(lambda: client.ask("GET", "/v1/jobs/first-1")["present"] == 2)
        say("jobs", *where, "--wait", "--timeout-s", "120")
        say("cluster", *where, "--chrome", f"{folder}/cluster.json")
        states = {each["id"]: each["state"] for each in client.ask("GET", "/v1/jobs")["jobs"]}
        assert states == {"first-1": "done", "second-2": "done", "third-3": "done"}, states
    finally:
        daemon.terminate()
        daemon.wait(30)


def say(*words: object) -> None:
    print(f"$ dovetail {' '.join(str(word) for word in words)}", flush=True)
    subprocess.run([*DOVETAIL, *map(str, words)], check=True, timeout=150)


def wait_until(is_so, timeout_s: float = 60.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < until_s, "it takes too long"
        time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "out/cluster")
