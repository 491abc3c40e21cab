"""What masked sums cost: bytes and processor time of a step, of 4 and 16 workers, beside plain sums.

    python benchmarks/masked_sums.py                    # parts of a step, in this process
    python benchmarks/masked_sums.py --runs             # and real runs of 4 and 16 workers and a server
    python benchmarks/masked_sums.py --workers 2 8

CTR-DNN's shapes: a batch of 2,048 samples over all workers, 26 slots of Zipf-distributed ids in a million rows x 16,
500,000 dense numbers, one server. Of the parts of a step, gradients are drawn and nothing travels: what a worker does
to send its gradients (plain: lay them out; masked: keys, fixed point, masks), what the server does to add all up, and
the bytes of both ways that this needs. Runs are of generated clicks, samples as small as they are, measured between two
steps by the processor time of every process. Processor time, the median over steps. Ratios over plain come last.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dovetail.runtime.masking.fixed_point import FixedPoint
from dovetail.runtime.masking.masks import MaskKeys
from dovetail.runtime.messages import Agree, MaskedPush, MaskKey
from dovetail.runtime.server.gradients import StepSums, TaskPart
from dovetail.runtime.server.masked_sums import MaskedSums
from dovetail.runtime.worker.links.masked_push import MaskedPusher
from dovetail.runtime.worker.rows.keys import look_up
from dovetail.transport import KeyRing, make_keys

BATCH, SLOTS, ROWS, WIDTH, DENSE = 2048, 26, 1_000_000, 16, 500_000
STEPS = 5


def main() -> None:
    """Measure and print both sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--runs", action="store_true", help="real runs, too")
    parser.add_argument("--run-steps", type=int, default=30)
    arguments = parser.parse_args()
    ratios: dict[str, float] = {}
    for count in arguments.workers:
        ratios |= parts_of_a_step(count, arguments.steps)
    for count in arguments.workers if arguments.runs else ():
        ratios |= runs_of(count, arguments.run_steps)
    for name, ratio in ratios.items():
        print(f"{name}: masked / plain {ratio:.2f}x")


class Parts:
    """What the parts of a step take of so many workers, side by side."""

    def __init__(self, count: int, folder: Path) -> None:
        """Have workers agree on secrets, which a run does once."""
        self.count, self.names = count, [f"worker-{number}" for number in range(count)]
        for name in self.names:
            make_keys(folder, name)
        self.keys = [MaskKeys(name, "benchmark", KeyRing(folder)) for name in self.names]
        keys = zip(self.names, self.keys, strict=True)
        self.members = tuple(MaskKey(name=name, public=each.public) for name, each in keys)
        self.fixed = FixedPoint(float(BATCH), count)
        blueprint = SimpleNamespace(
            tables=[SimpleNamespace(width=WIDTH)],
            num_servers=1,
            dense_slice=lambda _: slice(0, DENSE),
            mask_reach=float(BATCH),
            private=None,
        )
        process = SimpleNamespace(blueprint=blueprint, log=print)
        self.pushers = [MaskedPusher(process, each, None) for each in self.keys]  # type: ignore[arg-type]
        self.random = np.random.default_rng(count)
        self.figures: dict[str, list[float]] = {}

    def draw(self) -> list[Any]:
        """Return the rows and dense gradients of every worker."""
        batches = []
        for _ in self.names:
            asked = (self.random.zipf(1.2, BATCH // self.count * SLOTS) - 1) % ROWS
            wanted = look_up(0, asked.astype(np.int64), 1)
            values = self.random.normal(scale=0.01, size=(len(wanted.keys), WIDTH)).astype(np.float32)
            batches.append(([(wanted, values)], self.random.normal(scale=0.01, size=DENSE).astype(np.float32)))
        return batches

    def note(self, name: str, value: float) -> None:
        """Keep a figure of a step."""
        self.figures.setdefault(name, []).append(value)

    def plain(self, step: int, batches: list[Any]) -> None:
        """Add up gradients as they are."""
        begun_s = time.process_time()
        for rows, dense in batches:
            _ = rows[0][1].tobytes(), dense.tobytes()
        self.note("plain worker", (time.process_time() - begun_s) * 1e3 / self.count)
        sums, begun_s = StepSums([WIDTH], DENSE), time.process_time()
        for task, (rows, dense) in enumerate(batches):
            wanted, values = rows[0]
            sums.push(TaskPart(step, task, self.names[task], rows=[(0, wanted.keys, values)], dense=dense))
        self.note("plain server", (time.process_time() - begun_s) * 1e3)
        self.note("plain bytes", sum(rows[0][1].nbytes + dense.nbytes for rows, dense in batches) / self.count)
        self.note("rows of a worker", sum(len(rows[0][0].keys) for rows, _ in batches) / self.count)

    def masked(self, step: int, batches: list[Any]) -> None:
        """Add up under masks; what comes out is looked at."""
        begun_s = time.process_time()
        mine = [self.pushers[task]._keys_at(0, rows) for task, (rows, _) in enumerate(batches)]
        worker_s = time.process_time() - begun_s
        server, sums = MaskedSums((WIDTH,), DENSE, reach=float(BATCH)), StepSums([WIDTH], DENSE)
        begun_s = time.process_time()
        for name, keys in zip(self.names, mine, strict=True):
            message = Agree(generation=1, step=step, worker=name, members=tuple(self.names))
            answers = server.agree(message, keys, name)
        server_s = time.process_time() - begun_s
        union, words = answers[0][1], []
        begun_s = time.process_time()
        for task, (rows, dense) in enumerate(batches):
            self.keys[task].begin(1, step, self.members)
            words.append(self.pushers[task]._masked(0, union, rows, dense, 1.0, self.fixed, self.members))
        worker_s += time.process_time() - begun_s
        begun_s = time.process_time()
        for task, each in enumerate(words):
            message = MaskedPush(
                generation=1,
                step=step,
                task=task,
                worker=self.names[task],
                members=tuple(self.names),
                positions=BATCH // self.count,
                samples=BATCH // self.count,
            )
            summed = server.push(message, each.view(np.int32))
        sums.push(summed.part)
        self.note("masked server", (server_s + time.process_time() - begun_s) * 1e3)
        self.note("masked worker", worker_s * 1e3 / self.count)
        asked = sum(keys[0].nbytes for keys in mine) / self.count
        self.note("masked bytes", words[0].nbytes + asked + union[0].nbytes)
        self.note("rows of a step", len(union[0]))
        exact = sum(dense.astype(np.float64) for _, dense in batches)
        off = np.abs(summed.part.dense - exact).max()
        if off > self.count * self.fixed.unit / 2 + 1e-6:
            raise RuntimeError(f"the masked sum is off by {off:g}")


def parts_of_a_step(count: int, steps: int) -> dict[str, float]:
    """Print what a step takes of so many workers; return the ratios."""
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(count, Path(folder))
        for step in range(steps + 1):  # the first compiles, and agrees on secrets
            batches = parts.draw()
            parts.plain(step, batches)
            parts.masked(step, batches)
    middle = {name: statistics.median(values[1:]) for name, values in parts.figures.items()}
    print(
        f"{count} workers: {middle['rows of a worker']:,.0f} rows a worker, {middle['rows of a step']:,.0f} a step\n"
        f"  bytes of a worker and step: plain {middle['plain bytes'] / 1e6:.2f} MB, "
        f"masked {middle['masked bytes'] / 1e6:.2f} MB\n"
        f"  processor time of a worker's sending: plain {middle['plain worker']:.2f} ms, "
        f"masked {middle['masked worker']:.2f} ms\n"
        f"  processor time of the server's adding: plain {middle['plain server']:.2f} ms, "
        f"masked {middle['masked server']:.2f} ms",
        flush=True,
    )
    return {
        f"{count} workers, {what}": middle[f"masked {part}"] / middle[f"plain {part}"]
        for what, part in (("bytes", "bytes"), ("a worker's sending", "worker"), ("the server's adding", "server"))
    }


def runs_of(count: int, steps: int) -> dict[str, float]:
    """Print what a step of a real run takes of all processes together; return the ratio."""
    import msgspec

    from dovetail.spec.privacy import RunPrivacy
    from dovetail.spec.run import Run, RunData, RunModel, RunServers, RunTraining, RunWorker

    plain = Run(
        model=RunModel(name="ctr-dnn", options={"num_rows": 200_000}),
        data=RunData(samples=BATCH * 10_000, options={"num_samples": BATCH * 10_000}),
        training=RunTraining(batch=BATCH),
        servers=RunServers(count=1, threads=1),
        workers=[RunWorker(count=count)],
    )
    masked = msgspec.structs.replace(plain, privacy=RunPrivacy(aggregation="masked"))
    found = {name: measured(run, steps) for name, run in (("plain", plain), ("masked", masked))}
    for name, (worker_ms, server_ms, all_ms) in found.items():
        print(
            f"a run of {count} workers, {name}: workers {worker_ms:.1f} ms, server {server_ms:.1f} ms, "
            f"all {all_ms:.1f} ms of processor time a step of {BATCH} samples",
            flush=True,
        )
    return {f"{count} workers, a whole run": found["masked"][2] / found["plain"][2]}


def measured(run: object, steps: int) -> tuple[float, float, float]:
    """Return the processor time a step of all workers, the server and all processes, in milliseconds."""
    import psutil

    from dovetail.runtime.launch.local import LocalRun
    from dovetail.runtime.prepare.run_folder import prepare

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        prepare(run, folder)  # type: ignore[arg-type]
        with LocalRun(folder) as local:

            def spent() -> dict[str, float]:
                times = {who: psutil.Process(child.process_id).cpu_times() for who, child in local.children.items()}
                return {who: each.user + each.system for who, each in times.items()}

            def until(step: int) -> int:
                begun_s = time.monotonic()
                while (report := local.look()) is None or report.step < step:
                    if time.monotonic() - begun_s > 400 or (report is not None and report.state == "failed"):
                        raise RuntimeError("the run does not go on" if report is None else report.error)
                    time.sleep(0.01)
                return int(report.step)

            first, before = until(8), spent()
            last, after = until(first + steps), spent()
            for child in local.children.values():
                child.handle.kill()
    took = {who: (after[who] - before[who]) * 1e3 / (last - first) for who in before}
    workers = sum(value for who, value in took.items() if who.startswith("worker"))
    return workers, took["server-0"], sum(took.values())


if __name__ == "__main__":
    main()
