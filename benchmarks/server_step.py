"""What one server's rows cost in a step of `sync`: pulls, pushes, commit and updates, without messages.

    python benchmarks/server_step.py                       # this checkout
    python benchmarks/server_step.py --against DIR/src     # and another checkout's code, sides in turn
    python benchmarks/server_step.py --threads 1,4         # by servers.threads

One shard with the table of `parameter_server.py` (2.6 million rows x 16, 400 x 3 hidden units), two workers that
pull and push their half of each batch. Processor time of the serving thread, with threads the time that passes; the
median of 200 steps. The ratio comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "rivals"))

STEPS = 200


def main() -> None:
    """Run all sides in turn and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--optimizer", default="adagrad")
    parser.add_argument("--threads", default="1", help="of the server, with commas")
    parser.add_argument("--against", type=Path, help="the `src` of another checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side is not None:
        print(json.dumps(measure(arguments)))
        return
    from make_data import make_data

    sides: dict[str, tuple[int, Path | None]] = {"before": (0, arguments.against)} if arguments.against else {}
    sides |= {f"threads {each}": (int(each), None) for each in arguments.threads.split(",")}
    found: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "samples.npz"
        make_data(data, num_samples=262_144)
        for _ in range(arguments.rounds):
            for name, (threads, source) in sides.items():
                environment = os.environ | ({"PYTHONPATH": str(source)} if source else {})
                options = ["--side", threads, "--data", data, "--batch", arguments.batch]
                command = [sys.executable, __file__, *map(str, options), "--optimizer", arguments.optimizer]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
    medians = {name: statistics.median(each) for name, each in found.items()}
    for name, each in found.items():
        print(f"{name}: {medians[name]:.2f} ms a step ({', '.join(f'{ms:.2f}' for ms in each)})")
    first, *others = medians
    for name in others:
        print(f"{first} / {name}: {medians[first] / medians[name]:.2f}x")


def measure(arguments: argparse.Namespace) -> float:
    """Return the milliseconds of a step; `--side 0` is code that knows no threads."""
    import numpy as np
    from ctr_dnn import HIDDEN, LEARNING_RATES, NUM_ROWS, WIDTH
    from memory_source import MemorySource

    from dovetail.runtime import checkpoint
    from dovetail.runtime.prepare.run_folder import prepare
    from dovetail.runtime.server.gradients import TaskPart
    from dovetail.runtime.server.shard import Shard
    from dovetail.runtime.worker.rows.keys import look_up
    from dovetail.spec.run import Run, RunData, RunModel, RunServers, RunTraining, RunWorker
    from dovetail.spec.run_sections import RunOptimizer

    batch, source, threads = arguments.batch, MemorySource(arguments.data), arguments.side
    run = Run(
        model=RunModel(name="ctr-dnn", options={"num_rows": NUM_ROWS, "width": WIDTH, "hidden": [HIDDEN] * 3}),
        data=RunData(shuffle=False),
        training=RunTraining(batch=batch, epochs=10, micro_batch=4096),
        optimizer=RunOptimizer(name=arguments.optimizer, learning_rate=LEARNING_RATES[arguments.optimizer]),
        servers=RunServers(host_bytes=2 << 30, **({"threads": threads} if threads else {})),
        workers=[RunWorker(count=2)],
    )
    folder = Path(tempfile.mkdtemp(prefix="dovetail-benchmark-"))
    blueprint = prepare(run, folder, source=source)
    shard = Shard(blueprint, 0, folder / "rows")
    shard.load(checkpoint.newest(folder))
    dense = np.full(len(shard.values), 1e-3, dtype=np.float32)
    now_s = time.perf_counter if threads > 1 else time.thread_time
    taken = []
    out = np.empty((batch * 26, WIDTH), dtype=np.float32)
    steps_an_epoch = source.num_samples // batch
    for number in range(steps_an_epoch + STEPS):  # in the first epoch rows are made
        first = number % steps_an_epoch * batch
        halves = [(first, first + batch // 2), (first + batch // 2, first + batch)]
        look_ups = [look_up(0, source.read(*half).ids.numpy(), 1) for half in halves]
        begun_s = now_s()
        wheres = []
        for worker, each in enumerate(look_ups):
            wheres.append(pulled(shard, worker, number, each.keys, out[: len(each.keys)]))
        seconds = now_s() - begun_s
        for worker, each in enumerate(look_ups):
            gradients = out[: len(each.keys)] * np.float32(0.01)
            begun_s = now_s()
            where = {"wheres": [wheres[worker]]} if wheres[worker] is not None else {}
            rows = [(0, each.keys, gradients)]
            shard.push(TaskPart(number, worker, f"w{worker}", rows=rows, dense=dense, **where))
            seconds += now_s() - begun_s
        begun_s = now_s()
        shard.commit(scale=1 / batch, dense_scale=1 / batch, factor=1.0)
        shard.settle()
        taken.append(seconds + now_s() - begun_s)
    shard.close()
    shutil.rmtree(folder, ignore_errors=True)
    return 1e3 * statistics.median(taken[-STEPS:])


def pulled(shard, worker: int, step: int, keys, out):
    """Have rows written where an answer goes, as the server's loop does; return where they lie, where that is known."""
    if not hasattr(shard, "answer"):
        out[:] = shard.pull((0,), (keys,), dense=False)[0]
        return None
    from dovetail.runtime.server.key_set_cache import PullName

    shard.answer((0,), (keys,), dense=False, keep=PullName(f"w{worker}", step, step))[0].write(out)
    return shard.kept.find(f"w{worker}", step)[0].where


if __name__ == "__main__":
    main()
