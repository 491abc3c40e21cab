"""What a server's redo log costs, and what a server's death costs with it and without.

    python benchmarks/recovery.py                  # sync, on two quiet cores
    python benchmarks/recovery.py --mode async

CTR-DNN of `benchmarks/parameter_server.py`, two workers. First the speed: a run with the log and one without take
turns of `--seconds`, while the other is stopped, so that both see the same machine; the figure is the median over pairs
of turns. Then servers are killed at random moments: how long it takes until a step counts that did not before, and how
many steps were done again. The ratio of the speeds comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "rivals"))

from ctr_dnn import HIDDEN, LEARNING_RATES, NUM_ROWS, WIDTH
from make_data import make_data
from memory_source import MemorySource
from rates import others_s

from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import Run, RunData, RunModel, RunServers, RunTraining, RunWorker
from dovetail.spec.run_sections import RunFaults, RunOptimizer, RunSaving

NUM_SAMPLES = 131_072
MOST_WAITED_S = 120.0
SETTLES_S = 0.4
"""How long a run that was stopped takes until it goes at its pace."""


def main() -> None:
    """Run all sides and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="sync", choices=["sync", "ssp", "async"])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=0, help="of the log, on another server")
    parser.add_argument("--log-folder", help="where the log goes; absent: a folder for temporary files")
    parser.add_argument("--turns", type=int, default=20, help="of each side")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn")
    parser.add_argument("--warm-up", type=int, default=2 * NUM_SAMPLES, help="samples before that: all rows are made")
    parser.add_argument("--kills", type=int, default=4, help="of servers, with the log; one without")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dovetail-benchmark-") as name:
        folder = Path(name)
        make_data(folder / "samples.npz", num_samples=NUM_SAMPLES)
        ratio = measure(folder, arguments)
        if arguments.kills:
            kill_servers(folder, arguments, has_log=True, kills=arguments.kills)
            kill_servers(folder, arguments, has_log=False, kills=1)
    print(f"with the log / without: {ratio:.3f}x")


def started(folder: Path, arguments: argparse.Namespace, *, has_log: bool) -> LocalRun:
    """Return a run that starts in a fresh folder."""
    run = Run(
        model=RunModel(name="ctr-dnn", options={"num_rows": NUM_ROWS, "width": WIDTH, "hidden": [HIDDEN] * 3}),
        data=RunData(shuffle=False),
        training=RunTraining(batch=arguments.batch, epochs=1_000_000, mode=arguments.mode, micro_batch=4096),
        optimizer=RunOptimizer(name="adagrad", learning_rate=LEARNING_RATES["adagrad"]),
        servers=RunServers(host_bytes=2 << 30, count=arguments.servers),
        workers=[RunWorker(count=2)],
        checkpoint=RunSaving(every_s=None),
        faults=RunFaults(
            redo_log=has_log, replicas=arguments.replicas if has_log else 0, log_folder=arguments.log_folder
        ),
    )
    place = folder / ("with" if has_log else "without")
    shutil.rmtree(place, ignore_errors=True)
    source = MemorySource(folder / "samples.npz")
    prepare(run, place, source=source)
    return LocalRun(place, source=source)


def measure(folder: Path, arguments: argparse.Namespace) -> float:
    """Return how fast a run is with the log, as a multiple of one without."""
    with ExitStack() as both:
        one, other = (both.enter_context(warm(folder, arguments, has_log=has_log)) for has_log in (True, False))
        others, begun_s = others_s(os.getpid()), time.perf_counter()
        before = [spent_by(running) for running in (one, other)]
        rates = [(turn(one, arguments.seconds), turn(other, arguments.seconds)) for _ in range(arguments.turns)]
        after = [spent_by(running) for running in (one, other)]
        other_cores = (others_s(os.getpid()) - others) / (time.perf_counter() - begun_s)
        for running in (one, other):
            signal_all(running, signal.SIGCONT)
        last = json.loads((one.folder / "metrics.jsonl").read_text().splitlines()[-1])
        log = sum(server["log_bytes"] for server in last["servers"].values())
        log_s = max(server["log_s"] for server in last["servers"].values())
    with_log, without = (statistics.median(each) for each in zip(*rates, strict=True))
    print(f"with the log: {with_log:,.0f} samples/s, {log / last['samples']:,.0f} bytes a sample in the log, ", end="")
    print(f"{log_s / last['step'] * 1e3:.2f} ms a step for it")
    print(f"without: {without:,.0f} samples/s (others used {other_cores:.2f} cores)")
    for what, earlier, later in zip(("with the log", "without"), before, after, strict=True):
        samples, of_servers_s, of_all_s = (now - then for then, now in zip(earlier, later, strict=True))
        servers_ms, all_ms = (1e3 * seconds * arguments.batch / samples for seconds in (of_servers_s, of_all_s))
        print(f"processor time a step, {what}: {servers_ms:.2f} ms of servers, {all_ms:.2f} ms of all", flush=True)
    return statistics.median(mine / theirs for mine, theirs in rates)


@contextmanager
def warm(folder: Path, arguments: argparse.Namespace, *, has_log: bool) -> Iterator[LocalRun]:
    """Have a run that has made its rows, and is stopped."""
    with started(folder, arguments, has_log=has_log) as running:
        wait(running, until_sample=arguments.warm_up)
        signal_all(running, signal.SIGSTOP)
        yield running


def spent_by(running: LocalRun) -> tuple[float, float, float]:
    """Return a run's samples, and how long its servers and all its processes have computed, in the system too."""
    of_servers = of_all = 0
    for name, child in running.children.items():
        fields = Path(f"/proc/{child.process_id}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        of_all += ticks
        of_servers += ticks if name.startswith("server-") else 0
    second = os.sysconf("SC_CLK_TCK")
    return samples_of(running), of_servers / second, of_all / second


def turn(running: LocalRun, seconds: float) -> float:
    """Let a run that is stopped go on for a while; return its samples a second."""
    signal_all(running, signal.SIGCONT)
    wait(running, seconds=SETTLES_S)
    begun_s, first = time.perf_counter(), samples_of(running)
    wait(running, seconds=seconds)
    rate = (samples_of(running) - first) / (time.perf_counter() - begun_s)
    signal_all(running, signal.SIGSTOP)
    return rate


def signal_all(running: LocalRun, number: signal.Signals) -> None:
    """Send a signal to every process of a run."""
    for child in running.children.values():
        os.kill(child.process_id, number)


def kill_servers(folder: Path, arguments: argparse.Namespace, *, has_log: bool, kills: int) -> None:
    """Kill servers at random moments, and print what each death cost."""
    draw = random.Random(arguments.seed)
    with started(folder, arguments, has_log=has_log) as running:
        wait(running, until_sample=1)
        for _ in range(kills):
            wait(running, seconds=draw.uniform(2.0, 5.0))
            name = f"server-{draw.randrange(arguments.servers)}"
            before, generation = samples_of(running), running.report.generation if running.report else 0
            os.kill(running.children[name].process_id, signal.SIGKILL)
            begun_s = time.perf_counter()
            least = wait(running, until_sample=before + 1, after=generation)
            took_s = time.perf_counter() - begun_s
            again = max(0, before - least) / arguments.batch
            what = "with the log" if has_log else "without"
            print(f"{name} is killed, {what}: {took_s:.1f} s until training is further, {again:.0f} steps done again")
        for event in running.events:
            if "done again in" in event or "goes back" in event:
                print(f"  {event}")


def samples_of(running: LocalRun) -> int:
    """Return how many samples count."""
    return running.report.samples if running.report is not None else 0


def wait(running: LocalRun, *, seconds: float = MOST_WAITED_S, until_sample: int | None = None, after: int = -1) -> int:
    """Let a run go on; return the fewest samples that counted meanwhile, in a generation later than `after`."""
    end_s, least = time.monotonic() + seconds, sys.maxsize
    while time.monotonic() < end_s:
        report = running.look(0.02)
        if report is not None and report.state == "running" and report.generation > after:
            least = min(least, report.samples)
            if until_sample is not None and report.samples >= until_sample:
                return least
    if until_sample is not None:
        sys.exit(f"error: the run stands still after {seconds:.0f} s")
    return least


if __name__ == "__main__":
    main()
