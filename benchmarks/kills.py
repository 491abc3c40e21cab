"""Servers, workers and coordinators that are killed in real runs: no step repeated, every sample counted once.

    python benchmarks/kills.py                                     # 204 kills without a ring, 51 with one: 20 minutes
    python benchmarks/kills.py --modes sync --seeds 101 102        # others

Each run trains a model that counts (gradient 1 a sample) with two servers and two workers, three in a ring, while
processes of any role are killed (SIGKILL), a quarter of them two at once, on average every 2 s. At the end the tables
and the dense parameters of the last checkpoint are compared with the data; in `sync`, with Adam, they must be bit-equal
to those of a run without kills. A row for each run, the totals last.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.runtime.many_kills import MODES, Killed, train_under_kills


def main() -> None:
    """Run all and print a row for each; the status says whether something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--seeds", nargs="+", type=int, help="absent: 0 to 3, with a ring 0 to 2")
    parser.add_argument("--kills", type=int, default=17, help="in each run")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    print("| mode | seed | kills | of which two at once | servers, workers, coordinator | seconds | found |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for mode in arguments.modes:
        for seed in arguments.seeds or range(3 if mode == "ring" else 4):
            total += row(mode, seed, arguments.kills)
    print(f"{total['kills']} kills, {total['two at once']} two at once, {total['wrong']} runs wrong")
    sys.exit(min(total["wrong"], 1))


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
    if killed.went_back:
        return f"every sample once; {killed.went_back} times nobody was left who held the dense parameters"
    return "bit-equal, no step repeated" if mode == "sync" else "every sample once, no step repeated"


if __name__ == "__main__":
    main()
