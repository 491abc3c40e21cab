"""Training at two and three sites with 20 Mbit/s between them, against sites that are not joined, and against one site.

    python benchmarks/sites.py                          # as root: network namespaces, tc tbf
    python benchmarks/sites.py --curve                  # AUC against bytes for H = 8, 32, 128 and 4, 8, 32 bits too
    python benchmarks/sites.py --samples 100000 --sites 2

CTR-DNN with 26 slots and layers of 400 x 3, Adagrad. Every site is `dovetail train RUN.toml --site NAME` in a network
namespace of its own, with one server and one worker; its link holds 20 Mbit/s in each direction. All sides run on this
machine, so sites share its cores: speeds are compared, not added up.

- Speed: samples a second of all sites together, joined, against the same sites as runs of their own (half the data
  each, no exchange), from the first to the last second in which each trains.
- Bytes: what the sites' links carried, by the kernel's counters, against one run in `sync` whose second worker is at
  the other site: its bytes a step, measured over some steps at full speed, times the steps of an epoch.
- AUC: on samples that nobody trained on, after one epoch, against one site that has all workers.

The ratio comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import msgspec

from dovetail.runtime.finished.evaluate import evaluate_run
from dovetail.runtime.launch.entry import EnterHost
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.prepare.sites import make_site_keys
from dovetail.runtime.sites.figures import read_facts
from dovetail.spec.run import Run, RunData, RunFaults, RunModel, RunNetwork, RunTraining, RunWorker
from dovetail.spec.run_sections import RunExchange, RunOptimizer, RunSaving, RunSite
from testbed import Hosts, enter
from testbed.hosts import inside

NAMES = ["a", "b", "c"]
RATE = 2.5e6
"""Bytes a second: 20 Mbit/s."""
NUM_SLOTS, WIDTH, HIDDEN, PORT = 26, 10, [400, 400, 400], 7411
WITHIN, SPEED, FEWER = 0.002, 0.9, 50.0
COUNTED_STEPS = 12
TIMEOUT_S = 1500.0


def make_run(arguments: argparse.Namespace, *, samples: int, batch: int, workers: list[RunWorker]) -> Run:
    """Return a run without sites."""
    options = {"num_slots": NUM_SLOTS, "rows_per_slot": arguments.rows, "seed": arguments.seed}
    model = {"num_rows": NUM_SLOTS * arguments.rows, "width": WIDTH, "hidden": HIDDEN}
    return Run(
        model=RunModel(name="ctr-dnn", options=model),
        data=RunData(options=options, samples=samples, shuffle=False),
        training=RunTraining(batch=batch, seed=arguments.seed),
        optimizer=RunOptimizer(name="adagrad", learning_rate=0.02),
        workers=workers,
        checkpoint=RunSaving(every_s=None),
        faults=RunFaults(redo_log=False),
    )


def joined(run: Run, names: list[str], address: str, folder: Path, **exchange: Any) -> Run:
    """Return a run at several sites."""
    sites = [RunSite(name=name, address=None if number else f"{address}:{PORT}") for number, name in enumerate(names)]
    how = RunExchange(keys=str(folder / "site-keys"), **exchange)
    found = msgspec.structs.replace(run, sites=sites, exchange=how)
    make_site_keys(found, folder / "site-keys")
    return found


def train_all(hosts: Hosts, runs: dict[str, Run], folder: Path) -> dict[str, Any]:
    """Train every site in its namespace, as the command line does; return speed, bytes and seconds."""
    before, processes = carried(hosts, list(runs)), {}
    with ExitStack() as things:
        for name, run in runs.items():
            file = folder / f"{name}.json"
            file.write_bytes(msgspec.json.encode(run))
            site = ["--site", name] if run.sites else []
            words = [
                "ip",
                "netns",
                "exec",
                hosts.namespace(name),
                sys.executable,
                "-c",
                "from dovetail.cli.main import main; main()",
            ]
            words += ["train", str(file), "--out", str(folder / name), "--json", *site]
            log = things.enter_context((folder / f"{name}.log").open("wb"))
            processes[name] = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline_s = time.monotonic() + TIMEOUT_S
            for name, process in processes.items():
                if process.wait(max(1.0, deadline_s - time.monotonic())):
                    raise SystemExit(f"site {name} failed:\n{(folder / f'{name}.log').read_text()[-2000:]}")
        finally:
            for process in processes.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
    return {
        "samples_per_s": sum(speed_of(folder / name) for name in runs),
        "bytes": carried(hosts, list(runs)) - before,
        "waited_s": [round(sum(each.waited_s for each in read_facts(folder / name)), 1) for name in runs],
        "exchanges": max((each.exchange for name in runs for each in read_facts(folder / name)), default=0),
    }


def speed_of(folder: Path) -> float:
    """Return a run's samples a second, from its first step to its last."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["samples"] > 0)
    last = next(line for line in lines if line["samples"] == lines[-1]["samples"])
    return float((last["samples"] - first["samples"]) / max(1e-9, last["time_s"] - first["time_s"]))


def carried(hosts: Hosts, names: list[str]) -> int:
    """Return how many bytes the cables of hosts have carried to them so far: between them, each byte once."""
    total = 0
    for name in names:
        with inside(hosts.namespace(name)):
            for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
                interface, _, figures = line.partition(":")
                if interface.strip() == "eth0":
                    total += int(figures.split()[0])
    return total


def sync_bytes_a_step(arguments: argparse.Namespace, num_sites: int) -> float:
    """Return what one step of a single run takes over the link, whose workers but the first are at other sites."""
    names = NAMES[:num_sites]
    run = make_run(
        arguments, samples=COUNTED_STEPS * arguments.batch, batch=arguments.batch,
        workers=[RunWorker(name=name) for name in names],
    )  # fmt: skip
    folder = Path(tempfile.mkdtemp()) / "run"
    try:
        with Hosts(names) as hosts, inside(hosts.hub):
            address = hosts.bridge_address
            prepare(msgspec.structs.replace(run, network=RunNetwork(address=address)), folder)
            sandbox = OnHosts({name: hosts.namespace(name) for name in names[1:]})
            with LocalRun(folder, sandbox=sandbox) as local:
                local.wait(timeout_s=TIMEOUT_S)
            both_ways = 2 * carried(hosts, names[1:])  # rows and parameters there, gradients of the same size back
        return both_ways / COUNTED_STEPS
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


class OnHosts(nullcontext[None]):
    """A sandbox in which some workers live on hosts of their own."""

    def __init__(self, namespaces: dict[str, str]) -> None:
        """Take the namespace of each by its name."""
        super().__init__()
        self._namespaces = namespaces

    def entrance(self, name: str) -> EnterHost | None:
        """Return what moves a process into its namespace."""
        return partial(enter, self._namespaces[name]) if name in self._namespaces else None

    def started(self, name: str, process_id: int) -> None:
        """Do nothing about a process that was started."""


def measure(arguments: argparse.Namespace, num_sites: int, **exchange: Any) -> dict[str, Any]:
    """Train at some sites, joined where exchanges are described; return speed and bytes, and the first one's AUC."""
    names, folder = NAMES[:num_sites], Path(tempfile.mkdtemp())
    try:
        with Hosts(names, rates=[RATE] * num_sites) as hosts:
            alone = [RunWorker(name="worker")]
            if exchange:
                rate, momentum = map(float, arguments.outer.split(","))
                run = make_run(arguments, samples=arguments.samples, batch=arguments.batch, workers=alone)
                outer = {"outer_rate": rate, "outer_momentum": momentum}
                whole = joined(run, names, hosts.address(names[0]), folder, **(outer | exchange))
                found = train_all(hosts, dict.fromkeys(names, whole), folder)
                found["auc"] = evaluate_run(folder / names[0], num_samples=arguments.evaluate).metrics["auc"]
                return found
            samples, batch = arguments.samples // num_sites, arguments.batch // num_sites
            run = make_run(arguments, samples=samples, batch=batch, workers=alone)
            return train_all(hosts, dict.fromkeys(names, run), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def one_site(arguments: argparse.Namespace, num_workers: int) -> float:
    """Return the AUC of one site with all workers."""
    folder = Path(tempfile.mkdtemp()) / "run"
    try:
        workers = [RunWorker(count=num_workers)]
        prepare(make_run(arguments, samples=arguments.samples, batch=arguments.batch, workers=workers), folder)
        with LocalRun(folder) as local:
            local.wait(timeout_s=TIMEOUT_S)
        return float(evaluate_run(folder, num_samples=arguments.evaluate).metrics["auc"])
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


def compare(arguments: argparse.Namespace, num_sites: int) -> tuple[float, float, float]:
    """Print the figures of so many sites; return speed, bytes and AUC against the others."""
    steps = -(-arguments.samples // arguments.batch)
    sync_bytes = steps * sync_bytes_a_step(arguments, num_sites)
    auc = one_site(arguments, num_sites)
    every: Any = "auto" if arguments.every == "auto" else int(arguments.every)
    pairs = []
    for _ in range(arguments.repeats):
        pairs.append((measure(arguments, num_sites), measure(arguments, num_sites, every=every, bits=arguments.bits)))
    apart, together = pairs[-1]
    speed = median(each["samples_per_s"] / other["samples_per_s"] for other, each in pairs)
    fewer = sync_bytes / together["bytes"]
    print(f"{num_sites} sites, {arguments.samples:,} samples, batches of {arguments.batch:,}, every {every} steps, "
          f"{arguments.bits} bits")  # fmt: skip
    print(f"  not joined   {apart['samples_per_s']:9,.0f} samples/s")
    print(f"  joined       {together['samples_per_s']:9,.0f} samples/s   {together['exchanges']} exchanges, "
          f"workers waited {together['waited_s']} s")  # fmt: skip
    print(f"  between them {together['bytes'] / 1e6:9,.1f} MB, `sync` takes {sync_bytes / 1e6:,.0f} MB")
    print(f"  AUC          {together['auc']:9.4f}, one site {auc:.4f}")
    if arguments.curve:
        for number in (8, 32, 128):
            for bits in (4, 8, 32):
                found = measure(arguments, num_sites, every=number, bits=bits)
                print(f"    every {number:4} steps, {bits:2} bits: {found['bytes'] / 1e6:8.1f} MB   "
                      f"AUC {found['auc']:.4f} ({found['auc'] - auc:+.4f})", flush=True)  # fmt: skip
    return speed, fewer, together["auc"] - auc


def main() -> None:
    """Run all sides and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--evaluate", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=1_536, help="over all sites")
    parser.add_argument("--rows", type=int, default=4_000, help="of each slot")
    parser.add_argument("--sites", default="2", help="how many, e.g. 2,3")
    parser.add_argument("--every", default="32", help="steps of a round, or auto")
    parser.add_argument("--bits", type=int, default=8)
    parser.add_argument("--outer", default="1,0", help="rate and momentum of the outer optimizer; 1,0 is the mean")
    parser.add_argument("--repeats", type=int, default=1, help="of the comparison of speeds; the median counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--curve", action="store_true")
    arguments = parser.parse_args()
    for num_sites in map(int, arguments.sites.split(",")):
        speed, fewer, gap = compare(arguments, num_sites)
        print(f"  samples/s, joined / not joined, {num_sites} sites: {speed:.3f}x (asked: {SPEED}x)")
        print(f"  AUC, joined - one site: {gap:+.4f} (asked: within {WITHIN})")
        print(f"bytes between {num_sites} sites, sync / joined: {fewer:.1f}x (asked: {FEWER:.0f}x)")


if __name__ == "__main__":
    main()
