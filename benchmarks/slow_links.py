"""Training over links of 100 Mbit/s: numbers in as many bits as a link needs, against 32; and DDP with PyTorch's hooks.

    python benchmarks/slow_links.py                     # as root: network namespaces, tc tbf; about ten minutes
    python benchmarks/slow_links.py --widths 32,auto,16,8,4,2,1 --samples 400000
    python benchmarks/slow_links.py --seeds 1 --samples 20000 --evaluate 20000 --fast-rounds 1 --ddp-steps 8

CTR-DNN with 26 slots of 1,000 rows x 10 and layers of 400 x 3, Adam, batches of 2,000; two workers on hosts of their
own, coordinator and server in the hub. Every side sees the same samples, so the time to the same AUC is the time for
them, where the AUC on samples that nobody trained on is within 0.002 of that in 32 bits. Sides take turns, seed by
seed; AUCs are taken after training, in one process beside the links. The same at 10 Gbit/s, where automatic widths have
to stay out of the way. DDP: two processes over Gloo on the same hosts and links, the table's gradients dense, with no
hook, the fp16 hook, PowerSGD of rank 4, and `dovetail.codecs.ddp_hook` in 4 bits. The ratio comes last.
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
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

from dovetail.runtime.finished.evaluate import evaluate_run
from dovetail.runtime.launch.entry import EnterHost
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import Run, RunData, RunModel, RunNetwork, RunTraining, RunWorker
from dovetail.spec.run_sections import RunCompression, RunOptimizer, RunSaving
from testbed import Hosts, enter
from testbed.hosts import inside

NAMES = ["near", "far"]
SLOW, FAST = 12.5e6, 1.25e9
"""Bytes a second: 100 Mbit/s, 10 Gbit/s."""
NUM_SLOTS, ROWS, WIDTH, HIDDEN, BATCH = 26, 1000, 10, [400, 400, 400], 2000
WITHIN = 0.002
DDP_HOOKS = ("fp32", "fp16", "powersgd", "4")
PORT = 29_731


class OnHosts(nullcontext[None]):
    """A sandbox in which workers live on hosts of their own."""

    def __init__(self, namespaces: Mapping[str, str]) -> None:
        """Take the namespace of each by its name."""
        super().__init__()
        self._namespaces = namespaces

    def entrance(self, name: str) -> EnterHost | None:
        """Return what moves a process into its namespace."""
        return partial(enter, self._namespaces[name]) if name in self._namespaces else None

    def started(self, name: str, process_id: int) -> None:
        """Do nothing about a process that was started."""


def data_options(seed: int) -> dict[str, Any]:
    """Return the options of the data."""
    return {"num_slots": NUM_SLOTS, "rows_per_slot": ROWS, "seed": seed}


def make_run(arguments: argparse.Namespace, bits: Any, seed: int, address: str, samples: int) -> Run:
    """Return the run of one side."""
    return Run(
        model=RunModel(name="ctr-dnn", options={"num_rows": NUM_SLOTS * ROWS, "width": WIDTH, "hidden": HIDDEN}),
        data=RunData(options=data_options(seed), samples=samples, shuffle=False),
        training=RunTraining(batch=BATCH, mode=arguments.mode, seed=seed),
        optimizer=RunOptimizer(name="adam", learning_rate=0.001),
        workers=[RunWorker(name=name) for name in NAMES],
        network=RunNetwork(address=address),
        checkpoint=RunSaving(every_s=None),
        compression=RunCompression(bits=bits),
    )


def measure(arguments: argparse.Namespace, bits: Any, seed: int, rate: float, samples: int) -> dict[str, Any]:
    """Train one side; return its samples a second, AUC, and the widths that its links had in the end."""
    folder = Path(tempfile.mkdtemp()) / "run"
    try:
        with Hosts(NAMES, rates=[rate, rate]) as hosts, inside(hosts.hub):
            prepare(make_run(arguments, bits, seed, hosts.bridge_address, samples), folder)
            sandbox = OnHosts({name: hosts.namespace(name) for name in NAMES})
            with LocalRun(folder, sandbox=sandbox) as local:
                local.wait(timeout_s=900)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        begun = next(line for line in lines if line["samples"] > 0)
        seconds = lines[-1]["time_s"] - begun["time_s"]
        summary = json.loads((folder / "summary.json").read_text())
        links = summary.get("value", summary).get("links", {})
        auc = evaluate_run(folder, num_samples=arguments.evaluate).metrics["auc"] if arguments.evaluate else 0.0
        return {
            "samples_per_s": (lines[-1]["samples"] - begun["samples"]) / seconds,
            "auc": auc,
            "links": {name: link["bits"] for name, link in links.items()},
        }
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


def measure_ddp(arguments: argparse.Namespace, hook: str, seed: int) -> dict[str, Any]:
    """Train under DDP with a hook; return its samples a second and AUC."""
    steps = min(arguments.samples // BATCH, arguments.ddp_steps)
    with Hosts(NAMES, rates=[SLOW, SLOW]) as hosts:
        meet = f"{hosts.address(NAMES[0])}:{PORT}"
        ranks = []
        for rank, name in enumerate(NAMES):
            options = {
                "namespace": hosts.namespace(name), "meet": meet, "hook": hook, "rank": rank, "of": len(NAMES),
                "data": json.dumps(data_options(seed)), "hidden": json.dumps(HIDDEN), "batch": BATCH,
                "steps": steps, "rows": NUM_SLOTS * ROWS, "width": WIDTH, "seed": seed,
                "evaluate": arguments.evaluate,
            }  # fmt: skip
            words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
            script = Path(__file__).parent / "rivals" / "ddp_links.py"
            ranks.append(subprocess.Popen([sys.executable, script, *words], stdout=subprocess.PIPE, text=True))
        try:
            out = [rank.communicate(timeout=900)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    found = json.loads(out[0].strip().splitlines()[-1])
    return {"samples_per_s": BATCH / found["step_s"], "auc": found["auc"], "steps": steps}


def compare_fast(arguments: argparse.Namespace) -> None:
    """Train with automatic widths and without any where bandwidth is not the limit; print how both compare."""
    found: dict[Any, list[dict[str, Any]]] = {32: [], "auto": []}
    quick = argparse.Namespace(**{**vars(arguments), "evaluate": 0})
    for turn in range(arguments.fast_rounds):
        for bits in found if turn % 2 == 0 else reversed(found):
            found[bits].append(measure(quick, bits, 0, FAST, arguments.fast_samples))
    rates = {bits: [each["samples_per_s"] for each in sides] for bits, sides in found.items()}
    every = "; ".join(f"{bits}: " + ", ".join(f"{rate:,.0f}" for rate in each) for bits, each in rates.items())
    widths = sorted({bits for each in found["auto"] for bits in each["links"].values()})
    print(f"10 Gbit/s, samples/s: {every}   links of auto at {widths or [32]}")
    print(f"  auto / off at 10 Gbit/s: {statistics.median(rates['auto']) / statistics.median(rates[32]):.3f}x")


def show(name: str, found: list[dict[str, Any]]) -> None:
    """Print a side's figures."""
    speed = statistics.median(each["samples_per_s"] for each in found)
    aucs = ", ".join(f"{each['auc']:.4f}" for each in found)
    widths = sorted({bits for each in found for bits in each.get("links", {}).values()})
    print(f"  {name:28} {speed:9,.0f} samples/s   AUC {aucs}" + (f"   links at {widths}" if widths else ""), flush=True)


def main() -> None:
    """Run all sides and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=240_000)
    parser.add_argument("--evaluate", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mode", default="sync", choices=["sync", "ssp", "async"])
    parser.add_argument("--widths", default="32,auto", help="sides, the first to compare with, e.g. 32,auto,8,4,2,1")
    parser.add_argument("--ddp-steps", type=int, default=120, help="at most, of each hook; 0: without DDP")
    parser.add_argument("--fast-samples", type=int, default=160_000, help="of each side at 10 Gbit/s; 0: without")
    parser.add_argument("--fast-rounds", type=int, default=3)
    arguments = parser.parse_args()
    sides = [word if word == "auto" else int(word) for word in arguments.widths.split(",")]

    print(f"100 Mbit/s, {arguments.mode}, {arguments.samples:,} samples, {arguments.seeds} seeds")
    found: dict[Any, list[dict[str, Any]]] = {bits: [] for bits in sides}
    for seed in range(arguments.seeds):
        for bits in sides if seed % 2 == 0 else reversed(sides):
            found[bits].append(measure(arguments, bits, seed, SLOW, arguments.samples))
    for bits in sides:
        show(f"Dovetail, {bits} bits", found[bits])
    if arguments.ddp_steps:
        for hook in DDP_HOOKS:
            show(f"DDP, {hook}" + (" bits (ours)" if hook.isdigit() else ""), [measure_ddp(arguments, hook, 0)])
    if arguments.fast_samples:
        compare_fast(arguments)
    plain = found[sides[0]]
    for bits in sides[1:]:
        gaps = [each["auc"] - other["auc"] for each, other in zip(found[bits], plain, strict=True)]
        ratio = statistics.median(
            each["samples_per_s"] / other["samples_per_s"] for each, other in zip(found[bits], plain, strict=True)
        )
        verdict = "" if all(abs(gap) <= WITHIN for gap in gaps) else f" (AUC is off by up to {max(map(abs, gaps)):.4f})"
        print(f"time to the same AUC, {sides[0]} bits / {bits}: {ratio:.2f}x{verdict}")


if __name__ == "__main__":
    main()
