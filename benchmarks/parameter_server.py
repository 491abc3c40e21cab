"""How fast one parameter server and its workers train CTR-DNN on two cores, against the ways others offer.

    python benchmarks/parameter_server.py                              # Dovetail, plain PyTorch, DDP
    python benchmarks/parameter_server.py --tensorflow DIR/bin/python  # and TensorFlow's ParameterServerStrategy

26 slots x 100,000 rows x 16, hidden 400 x 3, batch 1024, the same samples in memory on every side, one side after the
other, `--rounds` times over; a side's figure is the median of its rounds. TensorFlow lives in an environment of its
own: `python -m venv DIR && DIR/bin/pip install tensorflow-cpu`. With Adagrad TensorFlow is shown at its best (the
sparse kernel of tf.compat.v1) and as Keras users get it; with Adam both of its optimizers go over the whole table in
every step, which PyTorch's SparseAdam and Dovetail do not. Rows of Dovetail's are made in its first epoch, before it is
measured. The ratios come last, that of the faster of Dovetail's two `sync` runs to plain PyTorch at the very end.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "rivals"))

from make_data import make_data
from side import run_side

Side = tuple[str, str, tuple[str, ...]]
OURS: list[Side] = [
    ("Dovetail async, 1 server + 2 workers", "dovetail_ps", ("--mode", "async", "--workers", "2")),
    ("Dovetail sync, 1 server + 2 workers", "dovetail_ps", ("--mode", "sync", "--workers", "2")),
    (
        "Dovetail sync, 1 server + 1 worker of 2 threads",
        "dovetail_ps",
        ("--mode", "sync", "--workers", "1", "--threads", "2"),
    ),
]
THEIRS: list[Side] = [
    ("plain PyTorch, 2 threads", "plain_pytorch", ("--threads", "2")),
    ("DDP, 2 processes", "ddp_pytorch", ("--processes", "2", "--threads", "1")),
]
TENSORFLOW: list[Side] = [
    ("TensorFlow PS, tf.compat.v1", "tensorflow_ps", ("--from", "v1")),
    ("TensorFlow PS, Keras", "tensorflow_ps", ("--from", "keras")),
]


def main() -> None:
    """Run all sides and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensorflow", help="the Python of TensorFlow's environment")
    parser.add_argument("--optimizers", default="adagrad,adam")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6, help="measured a side and round")
    parser.add_argument("--warm-up", type=float, default=8, help="seconds before that, in which rows are made")
    parser.add_argument("--patience", type=float, default=20, help="how much longer while others are busy")
    parser.add_argument("--samples", type=int, default=262_144)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "samples.npz"
        make_data(data, num_samples=arguments.samples)
        for optimizer in arguments.optimizers.split(","):
            compare(optimizer, data, arguments)


def compare(optimizer: str, data: Path, arguments: argparse.Namespace) -> None:
    """Print the figures of all sides with one optimizer, then the ratios."""
    sides = [*OURS, *THEIRS, *(TENSORFLOW if arguments.tensorflow else [])]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in sides}
    for _ in range(arguments.rounds):
        for name, script, options in sides:
            python = arguments.tensorflow if script == "tensorflow_ps" else sys.executable
            common = ("--data", data, "--optimizer", optimizer, "--seconds", arguments.seconds)
            waits = ("--patience", arguments.patience, "--warm-up", arguments.warm_up)
            found[name].append(run_side(script, *common, *waits, *options, python=python))
    print(f"\n{optimizer}: samples/s, median of {arguments.rounds} rounds (each), quiet rounds")
    rates = {}
    for name, results in found.items():
        quiet = [result for result in results if result["quiet"]]
        rates[name] = statistics.median(result["samples_per_s"] for result in quiet or results)
        each = ", ".join(f"{result['samples_per_s']:,.0f}" for result in results)
        print(f"  {name:48} {rates[name]:10,.0f}  ({each}; {len(quiet)} quiet)")
    ours = OURS[0][0]
    for name, rate in rates.items():
        if name != ours:
            print(f"  {ours} / {name}: {rates[ours] / rate:.2f}x")
    in_step = max((name for name, _, _ in OURS[1:]), key=lambda name: rates[name])
    print(f"  {in_step} / {THEIRS[0][0]}: {rates[in_step] / rates[THEIRS[0][0]]:.2f}x")


if __name__ == "__main__":
    main()
