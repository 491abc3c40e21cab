"""Predicted and measured samples/s of runs cut into stages, for many plans.

    python benchmarks/prediction_stages.py     # with a GPU and 16 cores: 9 plans; else 6 plans under quotas (root)

CTR-DNN in `sync`. Nothing of a plan is measured before it is predicted. Known are: the layers' shares of the model's
time (profiled), and short runs that are none of the plans, one of one stage, two of two (and one with the GPU): they
tell what layers, readers, servers and boundaries take, in seconds of processor time a sample:

    first stage = its layers + reader + boundary        second, cut at two places = its layers + boundary
    a step of one stage, at two sizes = samples and what does not depend on them (dense parameters to and fro)

The step is then `cost.sync_step`: stages and servers in turn, filled and drained with every batch. Kendall's tau is the
last line.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from scipy.stats import kendalltau

from dovetail.cost.pipeline import sync_step_seconds
from dovetail.data.load import load_data
from dovetail.models.load import load_model
from dovetail.profiler.layers import measure_layers
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import Run, RunData, RunModel, RunServers, RunTraining, RunWorker
from dovetail.spec.run_sections import RunOptimizer, RunStage

ROWS = 26 * 10_000
SAMPLES = 200_000


@dataclass(frozen=True)
class Layout:
    """A plan: the last layer of each stage, how many workers each has, on what, and how many servers."""

    lasts: tuple[int, ...]
    workers: tuple[int, ...]
    servers: int = 1
    gpu: bool = False
    """Whether the last stage is on the GPU."""
    cores: float | None = None
    """The quota of each worker."""
    micro_batch: int = 1024

    def __str__(self) -> str:
        """Say it in a few words."""
        firsts = (0, *(last + 1 for last in self.lasts[:-1]))
        parts = [
            f"{first}-{last} x {count}" + (" GPU" if self.gpu and last == self.lasts[-1] else "")
            for first, last, count in zip(firsts, self.lasts, self.workers, strict=True)
        ]
        quota = f", quota {self.cores}" if self.cores is not None else ""
        return f"{' | '.join(parts)}, {self.servers} server{'s' * (self.servers > 1)}{quota}, micro {self.micro_batch}"


END, FIRST_DENSE = 9, 2
"""The last layer of CTR-DNN, and the first with dense parameters."""
ON_GPU = (
    Layout((0, END), (2, 1), 2, gpu=True),
    Layout((0, END), (4, 1), 2, gpu=True),
    Layout((0, END), (6, 1), 4, gpu=True),
    Layout((3, END), (4, 1), 2, gpu=True),
    Layout((3, END), (8, 1), 2, gpu=True),
    Layout((5, END), (6, 1), 2, gpu=True),
    Layout((0, 3, END), (2, 4, 1), 2, gpu=True),
    Layout((END,), (4,), 2),
    Layout((END,), (8,), 2),
)
SHARED = tuple(Layout((1, END), workers) for workers in ((1, 1), (2, 1), (1, 2), (2, 2), (3, 3)))
"""The cut of examples/plans/two-stages.json, with 1 to 3 workers a stage, on cores that all share."""
UNDER_QUOTAS = (
    Layout((END,), (2,), cores=0.5),
    Layout((END,), (3,), cores=0.4),
    Layout((3, END), (1, 1), cores=0.6),
    Layout((3, END), (2, 1), cores=0.4),
    Layout((0, END), (1, 2), cores=0.4),
    Layout((0, 3, END), (1, 1, 1), cores=0.5),
)


@dataclass(frozen=True)
class Seen:
    """What a run did: samples/s, and seconds of processor time a sample, by kind of process."""

    samples_per_s: float
    seconds: dict[str, float]


def main() -> None:
    """Predict, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="measured, of each plan")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=400)
    parser.add_argument("--only", type=int, help="so many of the plans")
    parser.add_argument("--shared", action="store_true", help="the example's plan, with 1 to 3 workers a stage")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    arguments = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    plans = (SHARED if arguments.shared else ON_GPU if has_gpu else UNDER_QUOTAS)[: arguments.only]
    predictor = Predictor(arguments)
    rows = []
    for plan in plans:
        predicted = predictor.samples_per_s(plan)
        seen = measure(plan, arguments)
        rows.append({"plan": str(plan), "predicted": predicted, "measured": seen.samples_per_s})
        error = predicted / seen.samples_per_s - 1
        print(f"{plan}: predicted {predicted:,.0f}, measured {seen.samples_per_s:,.0f} ({error:+.1%})", flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows))
    errors = [abs(row["predicted"] / row["measured"] - 1) for row in rows]
    tau = kendalltau([row["predicted"] for row in rows], [row["measured"] for row in rows]).statistic
    print(f"median error {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    print(f"Kendall's tau {tau:.2f}")


class Predictor:
    """What is known before any plan has run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Profile the layers, and make the short runs."""
        self._arguments = arguments
        self._cores = len(os.sched_getaffinity(0))
        shares = profiled("cpu", arguments)
        shares = [share / sum(shares) for share in shares]
        # One stage: what a worker and the server take for a step, at two sizes; dense parameters are the same at both.
        batch = arguments.batch
        wholes = {size: measure(Layout((END,), (1,)), arguments, batch=size).seconds for size in (batch, batch // 2)}
        self._whole_s, self._whole_fixed_s = line({size: size * seen["stage-0"] for size, seen in wholes.items()})
        self._served_s, self._served_fixed_s = line({size: size * seen["server"] for size, seen in wholes.items()})
        # Two stages, cut at two places; then two workers in the second, which add up their gradients.
        early = measure(Layout((2, END), (1, 1)), arguments).seconds
        late = measure(Layout((6, END), (1, 1)), arguments).seconds
        ring = measure(Layout((2, END), (1, 2)), arguments).seconds
        layers_s = (early["stage-1"] - late["stage-1"]) / sum(shares[3:7])
        self._layers_s = {"cpu": [layers_s * share for share in shares]}
        self._boundary_s = max(0.0, early["stage-1"] - layers_s * sum(shares[3:]))
        self._reader_s = early["stage-0"] - layers_s * sum(shares[:3]) - self._boundary_s
        self._server_s = (early["server"] + late["server"]) / 2
        self._ring_s = max(0.0, batch * (ring["stage-1"] - early["stage-1"]) / 2)
        self._gpu_host_s = 0.0
        if torch.cuda.is_available():
            self._layers_s["gpu"] = profiled("cuda", arguments)
            on_gpu = measure(Layout((2, END), (1, 1), gpu=True), arguments).seconds
            self._gpu_host_s = on_gpu["stage-1"]
        known = {
            "layers": layers_s,
            "reader": self._reader_s,
            "server": self._server_s,
            "boundary": self._boundary_s,
            "layers on the GPU": sum(self._layers_s.get("gpu", [])),
            "the GPU's host": self._gpu_host_s,
        }
        print("us a sample: " + ", ".join(f"{name} {each * 1e6:.2f}" for name, each in known.items()))
        fixed = {"of one stage": self._whole_fixed_s, "of its server": self._served_fixed_s, "of a ring": self._ring_s}
        print(
            "ms a step and worker: " + ", ".join(f"{name} {each * 1e3:.2f}" for name, each in fixed.items()), flush=True
        )

    def samples_per_s(self, plan: Layout) -> float:
        """Return what a plan should reach."""
        batch, quota = self._arguments.batch, min(1.0, plan.cores or 1.0)
        stages_s: list[float] = []
        work_s, first, is_cut = 0.0, 0, len(plan.lasts) > 1
        for number, (last, workers) in enumerate(zip(plan.lasts, plan.workers, strict=True)):
            on_gpu = plan.gpu and number == len(plan.lasts) - 1
            layers_s = sum(self._layers_s["gpu" if on_gpu else "cpu"][first : last + 1])
            boundaries = (number > 0) + (number < len(plan.lasts) - 1)
            host_s = boundaries * self._boundary_s + (self._reader_s if number == 0 else 0.0) + layers_s
            host_s = self._gpu_host_s if on_gpu else host_s if is_cut else self._whole_s
            has_ring = is_cut and workers > 1 and last >= FIRST_DENSE
            fixed_s = self._ring_s if has_ring else 0.0 if is_cut else self._whole_fixed_s
            seconds = batch * max(layers_s if on_gpu else 0.0, host_s) / workers + fixed_s
            work_s += batch * host_s + workers * fixed_s
            stages_s.append(seconds / quota)
            first = last + 1
        readers = plan.workers[0]
        server_s = batch * (self._server_s if is_cut else self._served_s)
        server_s += 0.0 if is_cut else readers * self._served_fixed_s
        micro_batches = readers * math.ceil(batch / readers / plan.micro_batch)
        return batch / sync_step_seconds(
            [*stages_s, server_s / plan.servers],
            [*plan.workers, plan.servers],
            micro_batches=micro_batches,
            work_s=work_s + server_s,
            cores=self._cores,
        )


def line(seconds: dict[int, float]) -> tuple[float, float]:
    """Return what a sample and what a step takes, from the seconds of steps of two sizes."""
    (small, small_s), (large, large_s) = sorted(seconds.items())
    each_s = (large_s - small_s) / (large - small)
    return each_s, max(0.0, large_s - large * each_s)


def profiled(device: str, arguments: argparse.Namespace) -> list[float]:
    """Return the seconds of each layer, a sample."""
    source = load_data("clicks")
    graph = load_model("ctr-dnn", schema=source.schema, num_rows=ROWS, hidden=[arguments.hidden] * 3).to(device)
    size = 1024 if device == "cpu" else arguments.batch
    batches = [source.read(turn * size, (turn + 1) * size).to(torch.device(device)) for turn in range(4)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    layers = measure_layers(graph, batches, optimizer="adam")
    torch.set_num_threads(threads)
    # Rows are looked up, and updated, by readers and servers: what those take is measured with them.
    return [0.0 if number == 0 else layer.total_s / size for number, layer in enumerate(layers)]


def measure(plan: Layout, arguments: argparse.Namespace, *, batch: int | None = None) -> Seen:
    """Run a plan for a while."""
    with tempfile.TemporaryDirectory() as folder:
        prepare(run_of(plan, arguments, batch or arguments.batch), Path(folder) / "run")
        with LocalRun(Path(folder) / "run") as running:
            while running.report is None or running.report.step < 15:
                look(running)
            before, start = processor_s(running), time.perf_counter()
            first = running.report.samples
            while time.perf_counter() - start < arguments.seconds:
                look(running)
            samples = running.report.samples - first
            after, rate = processor_s(running), samples / (time.perf_counter() - start)
    return Seen(rate, {kind: (after[kind] - before[kind]) / max(1, samples) for kind in after})


def look(running: LocalRun) -> None:
    """See how a run goes; one that failed ends everything."""
    running.look()
    if running.report is not None and running.report.error:
        raise SystemExit(f"error: {running.report.error}")


def processor_s(running: LocalRun) -> dict[str, float]:
    """Return the processor time of each kind of process so far."""
    found: dict[str, float] = {}
    for name, child in running.children.items():
        kind = "server" if name.startswith("server") else name[: len("stage-0")] if "stage" in name else name
        times = psutil.Process(child.process_id).cpu_times()
        found[kind] = found.get(kind, 0.0) + times.user + times.system
    return found


def run_of(plan: Layout, arguments: argparse.Namespace, batch: int) -> Run:
    """Return the run of a plan."""
    firsts = (0, *(last + 1 for last in plan.lasts[:-1]))
    num_stages = len(plan.lasts)
    return Run(
        model=RunModel(name="ctr-dnn", options={"num_rows": ROWS, "hidden": [arguments.hidden] * 3}),
        data=RunData(samples=SAMPLES),
        training=RunTraining(
            batch=batch,
            epochs=100_000,
            dense="ring" if num_stages > 1 else "ps",
            micro_batch=plan.micro_batch,
        ),
        optimizer=RunOptimizer(name="adam", learning_rate=1e-4),
        servers=RunServers(count=plan.servers),
        stages=[RunStage(first_layer=first, last_layer=last) for first, last in zip(firsts, plan.lasts, strict=True)],
        workers=[
            RunWorker(
                name=f"stage-{number}",
                count=count,
                stage=number,
                cores=plan.cores,
                device="cuda" if plan.gpu and number == num_stages - 1 else "cpu",
            )
            for number, count in enumerate(plan.workers)
        ],
    )


if __name__ == "__main__":
    main()
