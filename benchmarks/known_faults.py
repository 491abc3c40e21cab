"""Faults that broke runs once, tried again from outside: by commands, files and signals alone, so on any version.

    python benchmarks/known_faults.py quiet                     # this tree
    python benchmarks/known_faults.py server --tree ../before   # a checkout of another commit

Every case trains a model that counts (gradient 1 a sample, plain SGD, rate 1) and does to the run what its name says:

    quiet      nothing at all: 8 workers in ssp and async, a checkpoint every few tasks (--busy: with load beside it)
    server     kill -9 of a ring's server
    workers    kill -9 of two of a ring's four workers, close together, four times
    hang       a worker's forward pass never returns, in sync, ssp, async and a ring
    pause      everything stands still for 70 s, then only the launcher, then only the coordinator
    crowd      many `dovetail join` at once (--joins) to a ring
    leftovers  kill -9 of the launcher: what stays in memory and on disk
    refused    starts that fail: what is said, and what stays
    journal    nothing: how large the journal becomes

A line for each run says what became of it. Nothing here fails: compare the lines of two trees.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from trials import BATCH, MOST_S, SAMPLES, SHARED, STRIKE_AT, Trial, checkpoints, counted, trial

RING = {"mode": "sync", "dense": "ring"}
MODES: dict[str, dict[str, str]] = {"sync": {}, "ssp": {"mode": "ssp"}, "async": {"mode": "async"}, "ring": RING}
PAUSE_S = 70.0
WATCH_S = 100.0
"""How long a run that may stand still is watched."""
GONE_S = 200.0
"""How long the processes of a run whose launcher was killed are waited for."""


def quiet(tree: Path, options: argparse.Namespace) -> None:
    """Do nothing to a run, and compare every checkpoint with its manifest."""
    for number in range(options.runs):
        mode = ("ssp", "async")[number % 2]
        how = {
            "workers": 8,
            "seconds": 0.0,
            "samples": 20_000,
            "checkpoint": {"every_steps": options.every, "keep": 10_000},
        }
        with load(options.busy), trial(tree, training={"mode": mode, "batch": 40}, **how) as run:
            outcome = run.outcome()
            kept = list(checkpoints(run.folder))
            wrong = [f"{name} has {dense} of {claimed}" for name, claimed, dense, _ in kept if dense != claimed]
            say(f"{mode} {number}", f"{outcome}; {len(wrong)} of {len(kept)} checkpoints wrong {wrong[:2] or ''}")


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many processes busy."""
    with ExitStack() as stack:
        for _ in range(processes):
            spinning = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(spinning.kill)
        yield


def server(tree: Path, options: argparse.Namespace) -> None:
    """Kill a ring's only server between two checkpoints."""
    for number in range(options.runs):
        with trial(tree, training=RING, checkpoint={"every_steps": 30}) as run:
            run.wait_for_step(2 * STRIKE_AT)
            os.kill(run.processes()["server-0"], signal.SIGKILL)
            say(f"server {number}", run.outcome())


def workers(tree: Path, options: argparse.Namespace) -> None:
    """Kill two of a ring's workers, a moment apart, again and again."""
    for number in range(options.runs):
        with trial(tree, training=RING, workers=4, checkpoint={"every_steps": 30}) as run:
            run.begin()
            for strike in range(4):
                alive = [name for name in sorted(run.processes()) if name.startswith("worker")]
                for name in alive[strike % 2 :][:2]:
                    os.kill(run.processes()[name], signal.SIGKILL)
                    time.sleep((0.0, 0.05, 0.2, 0.5)[(number + strike) % 4])
                if not run.wait_for_step(min(run.step + 8, SAMPLES // BATCH - 8), WATCH_S):
                    break
            say(f"workers {number}", run.outcome(WATCH_S))


def hang(tree: Path, options: argparse.Namespace) -> None:
    """Have one worker compute for ever, once."""
    for name in options.modes or MODES:
        with trial(tree, training=MODES[name], checkpoint={"every_steps": 30}) as run:
            run.begin()
            run.hang_at.touch()
            struck_s = time.monotonic()
            outcome = run.outcome(WATCH_S)
            stood_s = run.stood_still_s(struck_s, time.monotonic())
            hung = "hung" if not run.hang_at.exists() else "did NOT hang"
            say(f"hang {name}", f"a worker {hung}; no new step for {stood_s:.0f} s; {outcome}")


def pause(tree: Path, options: argparse.Namespace) -> None:
    """Stop processes for longer than a minute, and let them go on."""
    for who in options.modes or ("everyone", "launcher", "coordinator"):
        with trial(tree, checkpoint={"every_steps": 30}) as run:
            run.begin()
            everyone = {"launcher": run.launcher.pid} | run.processes()
            chosen = list(everyone.values()) if who == "everyone" else [everyone[who]]
            for number in chosen:
                os.kill(number, signal.SIGSTOP)
            time.sleep(PAUSE_S)
            for number in chosen:
                if psutil.pid_exists(number):
                    os.kill(number, signal.SIGCONT)
            say(f"pause {who}", run.outcome())


def crowd(tree: Path, options: argparse.Namespace) -> None:
    """Have many workers join a ring at once; after a while the run is asked to stop."""
    with trial(tree, training=RING, seconds=600.0, samples=60_000, checkpoint={"every_steps": 30}) as run:
        run.begin()
        begun_s, before = time.monotonic(), run.step
        joined = [run.command("join", str(run.folder)) for _ in range(options.joins)]
        try:
            run.wait(lambda: False, WATCH_S)
            stood_s = run.stood_still_s(begun_s, time.monotonic())
            known = max((line.count("joined-") for line in run.said), default=0)
            run.launcher.terminate()
            say(
                f"crowd of {options.joins}",
                f"in {WATCH_S:.0f} s {run.step - before} steps, up to {stood_s:.0f} s without one, {known} were there; "
                f"asked to stop: {run.outcome(WATCH_S)}",
            )
        finally:
            for each in joined:
                each.kill()
                each.wait()


def leftovers(tree: Path, _options: argparse.Namespace) -> None:
    """Kill the launcher, wait until all its processes are gone, and look around; and again after the next start."""
    shared = set(SHARED.iterdir())
    with trial(tree, checkpoint={"every_steps": 30}) as run:
        run.begin()
        others = [psutil.Process(number) for number in run.processes().values()]
        killed_s = time.monotonic()
        run.launcher.kill()
        run.launcher.wait()
        _, alive = psutil.wait_procs(others, GONE_S)
        gone_s = time.monotonic() - killed_s
        say("leftovers", f"{len(alive)} of {len(others)} processes alive after {gone_s:.0f} s; {left(run, shared)}")
        status = run.command("train", "--resume", str(run.folder)).wait(MOST_S)
        say("leftovers after --resume", f"status {status}; {counted(run.folder)}; {left(run, shared)}")


def left(run: Trial, shared: set[Path]) -> str:
    """Return what is there that was not before."""
    memory = sorted(path.name for path in set(SHARED.iterdir()) - shared)
    temporary = sorted(path.name for path in (run.hang_at.parent / "temporary").iterdir())
    return f"shared memory {memory}, temporary folder {temporary}, rows/ {(run.folder / 'rows').exists()}"


def refused(tree: Path, _options: argparse.Namespace) -> None:
    """Have starts fail: no disk, no such address, and the process that starts workers killed as soon as it is there."""
    starts = {"disk": {"out": "/sys/run"}, "address": {"network": {"address": "203.0.113.7"}}, "starter": {}}
    for what, how in starts.items():
        shared = set(SHARED.iterdir())
        with trial(tree, **how) as run:
            if what == "starter":
                run.wait(run.kill_starter)
            say(f"refused {what}", f"{run.outcome(WATCH_S)}; {left(run, shared)}")


def journal(tree: Path, options: argparse.Namespace) -> None:
    """See how large the journal becomes."""
    for name in options.modes or ("sync", "ssp"):
        how = {"seconds": 0.0, "samples": 10 * options.steps, "checkpoint": {"every_steps": 1000}}
        with trial(tree, training={**MODES[name], "batch": 10}, **how) as run:
            path = run.folder / "journal.jsonl"
            sizes = [0]

            def look(path: Path = path, sizes: list[int] = sizes) -> bool:
                """Note the size of now."""
                if path.exists():
                    sizes.append(path.stat().st_size)
                return False

            run.wait(look, 10 * MOST_S)
            say(
                f"journal {name}",
                f"{sizes[-1]:,} bytes after {run.step} steps ({sizes[-1] / max(1, run.step):.0f} a step), "
                f"{max(sizes):,} at most; {run.outcome()}",
            )


CASES: dict[str, Callable[[Path, argparse.Namespace], None]] = {
    each.__name__: each for each in (quiet, server, workers, hang, pause, crowd, leftovers, refused, journal)
}


def say(what: str, outcome: str) -> None:
    """Print what became of a run."""
    print(f"{what}: {outcome}", flush=True)


def main() -> None:
    """Try one case on one tree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="a checkout; absent: this one")
    parser.add_argument("--runs", type=int, default=1, help="how many runs, of quiet, server and workers")
    parser.add_argument("--modes", nargs="+", help="some of a case's kinds, e.g. hang --modes sync")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside a quiet run")
    parser.add_argument("--every", type=int, default=10, help="tasks from one checkpoint of a quiet run to the next")
    parser.add_argument("--steps", type=int, default=30_000, help="of a run whose journal is looked at")
    parser.add_argument("--joins", type=int, default=20)
    options = parser.parse_args()
    CASES[options.case](options.tree.resolve(), options)


if __name__ == "__main__":
    main()
