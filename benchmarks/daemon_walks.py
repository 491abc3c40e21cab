"""The daemon's decisions under random walks: whatever happens in whatever order, what must hold does.

    python benchmarks/daemon_walks.py --walks 100000               # about 12 minutes of one core
    python benchmarks/daemon_walks.py --walks 10000 --seed 500000  # others

In a walk jobs are submitted, cancelled and resized; starts fail with each errno, processes die, hang, ignore signals
and leave children; the daemon is killed between any two of its writes; clocks jump, disks fill and empty. Then all is
calm, and every job has to come to its end. `tests/serve/world.py` says what is checked. The count comes last.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.serve.world import Broken, walk


def main() -> int:
    """Walk, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walks", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="the first walk's; the others follow")
    parser.add_argument("--steps", type=int, default=40, help="things that happen in each")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="walks-", dir="/dev/shm" if Path("/dev/shm").exists() else None))
    begun_s, jobs, kills, broken = time.monotonic(), 0, 0, 0
    try:
        for seed in range(arguments.seed, arguments.seed + arguments.walks):
            try:
                world = walk(folder / "walk", seed, arguments.steps)
            except Broken as problem:
                broken += 1
                print(f"walk {seed}: {problem}", flush=True)
            else:
                jobs, kills = jobs + len(world.taken), kills + world.kills
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    took_s = time.monotonic() - begun_s
    print(f"{arguments.walks:,} walks from seed {arguments.seed:,} in {took_s:.0f} s: {jobs:,} jobs, {kills:,} kills")
    print(f"broken: {broken}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
