"""Rows over two workers against a replicated table: CTR-DNN on two cores, by Dovetail and by PyTorch's DDP.

    python benchmarks/sharded.py

26 slots x 100,000 rows x 16, hidden 400 x 3, Adagrad, the same samples in memory on both sides, in the same batches of
1,024 (`--batch`), half of each in either process. Ours is `dovetail.runtime.train(..., workers=2, table={"place":
"sharded"})`, reports and all. DDP has the whole table in each process; its gradients are sparse, or dense (`--dense`),
which is 166 MB to sum in every step. One side after the other, `--rounds` times over; a side's figure is the median of
its rounds, each the median of windows of a second in which nobody else used the machine. The ratio to the faster kind
of DDP comes last.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "rivals"))

from make_data import make_data
from side import run_side

OURS = "Dovetail, rows over 2 workers"


def main() -> None:
    """Run all sides and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1024, help="of both processes together")
    parser.add_argument("--seconds", type=float, default=6, help="measured a side and round")
    parser.add_argument("--warm-up", type=float, default=4, help="seconds before that; ours, at least an epoch")
    parser.add_argument("--patience", type=float, default=20, help="how much longer while others are busy")
    parser.add_argument("--samples", type=int, default=262_144)
    parser.add_argument("--dense", action="store_true", help="DDP with dense gradients of the table too")
    arguments = parser.parse_args()
    sides = {
        OURS: ("dovetail_sharded", "--workers", 2),
        "DDP, sparse gradients": ("ddp_pytorch", "--processes", 2, "--threads", 1),
    }
    if arguments.dense:
        sides["DDP, dense gradients"] = (*sides["DDP, sparse gradients"], "--embedding", "dense")
    found: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "samples.npz"
        make_data(data, num_samples=arguments.samples)
        waits = ("--warm-up", arguments.warm_up, "--seconds", arguments.seconds, "--patience", arguments.patience)
        for number in range(arguments.rounds):
            for name, (script, *options) in sides.items():
                result = run_side(script, "--data", data, "--batch", arguments.batch, *waits, *options)
                found[name].append(result["samples_per_s"])
                note = "" if result["quiet"] else ", and the machine was not quiet"
                print(f"round {number + 1}: {name}: {result['samples_per_s']:,.0f} samples/s{note}", flush=True)
    rates = {name: statistics.median(each) for name, each in found.items()}
    print()
    for name, rate in rates.items():
        print(f"{name:<32} {rate:>10,.0f} samples/s")
    print(f"ratio: {rates.pop(OURS) / max(rates.values()):.2f}x")


if __name__ == "__main__":
    main()
