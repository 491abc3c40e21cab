"""A storm of faults over real runs: whatever happens, every sample counts once, or the run says why it cannot.

    python benchmarks/storm.py --faults 500           # about 40 minutes on two cores
    python benchmarks/storm.py --faults 40 --seed 7   # a short one, with other faults

Each round trains a model that counts (gradient 1 a sample, plain SGD, rate 1) in one of the modes, with 1 to 3 servers
and 2 to 4 workers, while processes of all roles are killed (one, two or three at once), stopped for a while (up to 90
s), everyone together too, as by Ctrl-Z or a sleeping laptop, and workers hang with their heartbeat going on. Some
rounds are cut off whole, files of the run are damaged, and the run is resumed. At the end the tables and the dense
parameters of the last checkpoint are compared with the data. A row for each round, the totals last.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dovetail.errors import DovetailError
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.messages import Report
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import Run
from dovetail.spec.run_sections import RunSaving
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import kill, make_run

MODES = [{"mode": "sync"}, {"mode": "sync", "dense": "ring"}, {"mode": "ssp"}, {"mode": "async"}]
SAMPLES = 6000
BATCH = 60
SECONDS = 20.0
"""What a round would take without faults."""
FAULTS_A_ROUND = 20
PATIENCE_S = 4.0
MOST_S = 600.0
"""No round takes longer, or something waits without end."""
KINDS = ("kill", "kill two", "kill three", "stop", "stop everyone", "hang")
WEIGHTS = (8, 4, 2, 5, 1, 3)


class Storm:
    """Does something to a run now and then: call it with every report."""

    def __init__(self, draw: random.Random, faults: int, hang_at: Path, *, long_stops: int) -> None:
        """Get ready for so many faults, of which `long_stops` last 70 to 90 s."""
        self._draw, self.left, self._hang_at, self._long = draw, faults, hang_at, long_stops
        self._next_s = 0.0
        self.done: Counter[str] = Counter()

    def __call__(self, local: LocalRun, report: Report) -> None:
        """Strike where it is time to."""
        now_s = time.monotonic()
        if not self._next_s and report.samples:
            self._next_s = now_s
        if not self.left or not self._next_s or now_s < self._next_s or report.state in ("done", "failed"):
            return
        kind = self._draw.choices(KINDS, WEIGHTS)[0]
        self._strike(kind, local)
        self.done[kind] += 1
        self.left -= 1
        self._next_s = time.monotonic() + self._draw.uniform(0.1, 2.0)

    def _strike(self, kind: str, local: LocalRun) -> None:
        """Do one thing to a run."""
        alive = [name for name, child in local.children.items() if child.how_it_ended() is None]
        if kind.startswith("kill"):
            count = 1 + ("two" in kind) + 2 * ("three" in kind)
            for name in self._draw.sample(alive, min(count, len(alive))):
                kill(local, name, signal.SIGKILL)
                time.sleep(self._draw.choice([0.0, 0.0, 0.02, 0.2]))
        elif kind == "hang":
            self._hang_at.touch()
        else:
            everyone = kind == "stop everyone"
            seconds = self._draw.uniform(0.5, 2 * PATIENCE_S)
            if self._long and (everyone or self._draw.random() < 0.5):
                seconds, self._long = self._draw.uniform(70.0, 90.0), self._long - 1
            self._stop(local, alive if everyone else [self._draw.choice(alive)], seconds, waits=everyone)

    def _stop(self, local: LocalRun, names: list[str], seconds: float, *, waits: bool) -> None:
        """Stop processes for a while; with `waits` the launcher stands still too."""
        for name in names:
            kill(local, name, signal.SIGSTOP)
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            if waits:
                time.sleep(0.2)
            else:
                local.look()
        for name in names:
            if name in local.children and local.children[name].how_it_ended() is None:
                kill(local, name, signal.SIGCONT)


def damage(folder: Path, draw: random.Random) -> str:
    """Flip a bit of a file of the run, or cut one short; return which, after a copy was put beside the run."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    files = [
        path for path in files if path.parts[len(folder.parts)] in ("checkpoints", "journal.jsonl", "blueprint.json")
    ]
    path = draw.choice(files)
    shutil.copy2(path, folder.parent / "before")
    content = bytearray(path.read_bytes())
    if draw.random() < 0.25:
        del content[draw.randrange(len(content)) :]
    else:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return str(path.relative_to(folder))


def resumed(run: Run, folder: Path, path: str) -> tuple[LocalRun, str]:
    """Return a resumed run; where the damage is refused, the file is put right first."""
    try:
        prepare(run, folder, resume=True)
    except DovetailError as error:
        shutil.copy2(folder.parent / "before", folder / path)
        prepare(run, folder, resume=True)
        return LocalRun(folder), f"{path} refused: {error}"
    return LocalRun(folder), f"{path} passed over"


def one_round(number: int, seed: int, place: Path, faults: int) -> Counter[str]:
    """Run one round; return what was done."""
    draw = random.Random(seed * 1000 + number)
    mode = MODES[number % len(MODES)]
    servers, workers = draw.randint(1, 3), draw.randint(2, 4)
    hang_at, folder = place / "hang", place / "run"
    run = make_run(
        model=slow_counting(SECONDS * workers / SAMPLES, hang_at=str(hang_at)),
        optimizer=PLAIN, reduction="sum", samples=SAMPLES, batch=BATCH, micro_batch=20, servers=servers,
        workers=workers, patience_s=PATIENCE_S, restarts=10_000, checkpoint=RunSaving(every_s=1.0), **mode,
    )  # fmt: skip
    storm = Storm(draw, faults, hang_at, long_stops=number % 3 == 0)
    begun_s = time.monotonic()
    cuts = draw.randint(0, 2)
    prepare(run, folder)
    local, note = LocalRun(folder), ""
    while True:
        with local:
            over = watch(local, storm, draw.uniform(4, 10) if cuts else MOST_S, begun_s)
            if not over:
                for child in local.children.values():
                    child.handle.kill()
        if over:
            break
        cuts -= 1
        storm.done["cut and damage"] += 1
        path = damage(folder, draw)
        local, note = resumed(run, folder, path)
    assert_each_sample_counts_once(folder)
    what = ", ".join(f"{count} {kind}" for kind, count in sorted(storm.done.items()))
    print(
        f"| {number} | {' '.join(mode.values())} | {servers} | {workers} | {what} | "
        f"{time.monotonic() - begun_s:.0f} | every sample once{'; ' + note if note else ''} |",
        flush=True,
    )
    return storm.done


def watch(local: LocalRun, storm: Storm, seconds: float, begun_s: float) -> bool:
    """Watch a run for a while; True where it is done."""
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        report = local.look()
        if report is not None:
            storm(local, report)
            if report.state == "failed":
                raise SystemExit(f"the run failed: {report.error}")
            if report.state == "done":
                return True
        if time.monotonic() - begun_s > MOST_S:
            raise SystemExit(f"the run stands still: {local.report}")
    return False


def main() -> None:
    """Run rounds until there were enough faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print("| round | mode | servers | workers | what was done | seconds | found |\n|---|---|---|---|---|---|---|")
    total: Counter[str] = Counter()
    number = 0
    while sum(total.values()) < arguments.faults:
        with tempfile.TemporaryDirectory() as place:
            total += one_round(number, arguments.seed, Path(place), FAULTS_A_ROUND)
        number += 1
    print(f"{sum(total.values())} faults in {number} rounds: {dict(total)}; every sample counted once in all of them")


if __name__ == "__main__":
    main()
