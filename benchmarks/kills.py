"""Servers, workers and coordinators that are killed in real runs: no step repeated, every sample counted once.

    python benchmarks/kills.py                                     # 204 kills without a ring, 51 with one: 20 minutes
    python benchmarks/kills.py --modes sync --seeds 101 102        # others
    python benchmarks/kills.py --modes sharded                     # 51 kills of workers that own rows
    python benchmarks/kills.py --modes local --kills 20 --seeds 0 1 2 3 4   # 100 kills of runs in one process
    python benchmarks/kills.py --modes command --kills 5 --seeds 0 1        # those of `dovetail train` itself
    python benchmarks/kills.py --modes files --kills 25 --seeds 0 1 2 3     # 100 of it, from Parquet files with a cache
    python benchmarks/kills.py --modes sharded-command --kills 10 --seeds 0 1   # 20, with two workers

Each run trains a model that counts (gradient 1 a sample) with two servers and two workers, three in a ring, while
processes of any role are killed (SIGKILL), a quarter of them two at once, on average every 2 s. At the end the tables
and the dense parameters of the last checkpoint are compared with the data; in `sync`, with Adam, they must be bit-equal
to those of a run without kills. With `sharded` there are three workers that own the rows, and no other process: a run
goes back each time, and every sample counts once. A run in one process (`local`) is killed at any moment, often while a
checkpoint is written, and goes on from its newest checkpoint: bit-equal, with Adam. Its processes are forks, which
saves their start; with `command` they are `dovetail train` and `dovetail train --resume`. With `files` the samples come
from Parquet files, through a cache that is thrown away now and then, and a quarter of the kills come at any time after
the start of the command; with `sharded-command` two workers own the rows, and who watches them is killed. A row for
each run, the totals last.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.runtime.many_kills import MODES, Killed, train_under_kills

LOCAL = {"local": "local", "command": "command", "files": "files", "sharded-command": "sharded"}
"""Runs whose one process, or that which watches the others, is killed, by what `local_kills` calls them."""


def main() -> None:
    """Run all and print a row for each; the status says whether something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", default=MODES, choices=(*MODES, *LOCAL))
    parser.add_argument("--seeds", nargs="+", type=int, help="absent: 0 to 3, with a ring 0 to 2")
    parser.add_argument("--kills", type=int, default=17, help="in each run")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    print("| mode | seed | kills | of which two at once | servers, workers, coordinator | seconds | found |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for mode in arguments.modes:
        for seed in arguments.seeds or range(3 if mode in ("ring", "sharded") else 4):
            total += (local_row if mode in LOCAL else row)(mode, seed, arguments.kills)
    print(f"{total['kills']} kills, {total['two at once']} two at once, {total['wrong']} runs wrong")
    sys.exit(min(total["wrong"], 1))


def local_row(mode: str, seed: int, kills: int) -> Counter[str]:
    """Do one run in one process and print its row; return its figures."""
    with tempfile.TemporaryDirectory(prefix="dovetail-kills-") as folder:
        command = [
            sys.executable,
            "-m",
            "tests.runtime.trainer.local_kills",
            folder,
            str(seed),
            str(kills),
            LOCAL[mode],
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        print(f"| {mode} | {seed} | | | | | **{done.stderr.strip().splitlines()[-1]}** |", flush=True)
        return Counter(wrong=1)
    found = json.loads(done.stdout.splitlines()[-1])
    what = f"the bits of a run without kills, {found['steps']:,} steps" if found["is_equal"] else "**other bits**"
    what += f"; {found['while_saving']} kills while a checkpoint was written"
    what += f", {found['while_caching']} while the cache was" if mode == "files" else ""
    print(f"| {mode} | {seed} | {found['kills']} | 0 | | {found['seconds']:.0f} | {what} |", flush=True)
    return Counter({"kills": found["kills"], "wrong": not found["is_equal"]})


def row(mode: str, seed: int, kills: int) -> Counter[str]:
    """Do one run and print its row; return its figures."""
    with tempfile.TemporaryDirectory(prefix="dovetail-kills-") as folder:
        try:
            killed = train_under_kills(Path(folder), mode, seed, kills=kills)
        except Exception as error:
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            print(f"| {mode} | {seed} | | | | | **{what}** |", flush=True)
            return Counter(wrong=1)
    roles = ", ".join(str(killed.of(role)) for role in ("server", "worker", "coordinator"))
    head = f"| {mode} | {seed} | {len(killed.names)} | {killed.two_at_once} | {roles} | {killed.seconds:.0f}"
    print(f"{head} | {found(mode, killed)} |", flush=True)
    return Counter({"kills": len(killed.names), "two at once": killed.two_at_once})


def found(mode: str, killed: Killed) -> str:
    """Return what a run that passed has shown."""
    if mode == "sharded":
        return f"every sample once; went back {killed.went_back} x, as a whole"
    if killed.went_back:
        return f"every sample once; nobody was left who held the dense parameters ({killed.went_back} x)"
    return "bit-equal, no step repeated" if mode == "sync" else "every sample once, no step repeated"


if __name__ == "__main__":
    main()
