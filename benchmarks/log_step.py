"""What a redo log costs one server in a step of `sync`, by processor time, without messages.

    python benchmarks/log_step.py
    python benchmarks/log_step.py --folder DIR     # a log on another disk

The shard and the steps of `benchmarks/server_step.py`: 2.6 million rows x 16, 400 x 3 hidden units, two workers that
pull and push their half of each batch. In turns of 20 steps everything is logged and nothing is, in one process, so
that both sides see the same machine. Processor time of the process, the thread that writes to the disk included; the
median over turns. The ratio comes last.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "rivals"))

import numpy as np
from ctr_dnn import HIDDEN, LEARNING_RATES, NUM_ROWS, WIDTH
from make_data import make_data
from memory_source import MemorySource

from dovetail.runtime import checkpoint
from dovetail.runtime.messages import Commit
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.server.gradients import TaskPart
from dovetail.runtime.server.redo.log import RedoLog
from dovetail.runtime.server.shard import Shard
from dovetail.runtime.worker.rows.keys import look_up
from dovetail.spec.run import Run, RunData, RunModel, RunServers, RunTraining, RunWorker
from dovetail.spec.run_sections import RunOptimizer
from server_step import pulled

NUM_SAMPLES = 131_072
TURN = 20


def main() -> None:
    """Take turns and print both sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=20, help="of each side")
    parser.add_argument("--folder", type=Path, help="of the log; absent: one for temporary files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dovetail-benchmark-") as name:
        make_data(Path(name) / "samples.npz", num_samples=NUM_SAMPLES)
        server = Server(Path(name), arguments.batch, arguments.folder)
        for _ in range(NUM_SAMPLES // arguments.batch):  # rows are made
            server.step(has_log=True)
        found = {has_log: [] for has_log in (True, False)}
        for _ in range(arguments.turns):
            for has_log, turns in found.items():
                before = server.spent()
                for _ in range(TURN):
                    server.step(has_log=has_log)
                turns.append([1e3 * (now - then) / TURN for then, now in zip(before, server.spent(), strict=True)])
        server.close()
    medians = {side: [statistics.median(each) for each in zip(*turns, strict=True)] for side, turns in found.items()}
    for side, what in ((True, "with the log"), (False, "without")):
        of_all, of_log = medians[side]
        print(f"{what}: {of_all:.2f} ms a step, {of_log:.2f} ms of it for the log, its thread included")
    print(f"with the log / without: {medians[True][0] / medians[False][0]:.3f}x")


class Server:
    """A shard, its log, and workers that push what they pulled."""

    def __init__(self, folder: Path, batch: int, log_folder: Path | None) -> None:
        """Make an empty table."""
        self._batch, self._source = batch, MemorySource(folder / "samples.npz")
        run = Run(
            model=RunModel(name="ctr-dnn", options={"num_rows": NUM_ROWS, "width": WIDTH, "hidden": [HIDDEN] * 3}),
            data=RunData(shuffle=False),
            training=RunTraining(batch=batch, epochs=1000, micro_batch=4096),
            optimizer=RunOptimizer(name="adagrad", learning_rate=LEARNING_RATES["adagrad"]),
            servers=RunServers(host_bytes=2 << 30, threads=1),
            workers=[RunWorker(count=2)],
        )
        blueprint = prepare(run, folder / "run", source=self._source)
        self._shard = Shard(blueprint, 0, folder / "rows")
        self._shard.load(checkpoint.newest(folder / "run"))
        self._memory = Path(tempfile.mkdtemp(prefix="dovetail-benchmark-", dir="/dev/shm"))
        place = (log_folder or folder) / "log"
        self._log = RedoLog(blueprint, 0, place, self._shard, self._memory)
        self._log.begin(1, checkpoint.newest(folder / "run"))
        self._dense = np.full(len(self._shard.values), 1e-3, dtype=np.float32)
        self._out = np.empty((batch * 26, WIDTH), dtype=np.float32)

    def step(self, *, has_log: bool) -> None:
        """Do a step as a server does it."""
        shard, number, half = self._shard, self._shard.version, self._batch // 2
        first = number % (NUM_SAMPLES // self._batch) * self._batch
        pulls = []
        for worker in range(2):
            ids = self._source.read(first + worker * half, first + (worker + 1) * half).ids.numpy()
            keys = look_up(0, ids, 1).keys
            pulls.append((keys, pulled(shard, worker, number, keys, self._out[: len(keys)])))
        for worker, (keys, where) in enumerate(pulls):
            rows = [(0, keys, self._out[: len(keys)] * np.float32(0.01))]
            shard.push(TaskPart(number, worker, f"w{worker}", rows=rows, dense=self._dense, wheres=[where]))
            if has_log:
                self._log.step_grew(generation=1, positions=half)
        scale = 1 / self._batch
        if has_log:
            self._log.commit(Commit(generation=1, step=number, scale=scale, dense_scale=scale, factor=1.0))
        shard.commit(scale=scale, dense_scale=scale, factor=1.0)
        shard.settle()

    def spent(self) -> tuple[float, float]:
        """Return how long this process has computed, and how long its log took."""
        return time.process_time(), self._log.cost.seconds

    def close(self) -> None:
        """Remove what was written."""
        self._log.drop()
        self._shard.close()
        shutil.rmtree(self._memory)


if __name__ == "__main__":
    main()
