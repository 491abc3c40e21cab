"""A run in one process that is killed (SIGKILL) at any moment and goes on from its newest checkpoint.

    python -m tests.runtime.trainer.local_kills FOLDER SEED KILLS [command | files | sharded]

Each life is a fork of this process, which has loaded everything and computed nothing, so that a kill costs no import.
With `command` it is `dovetail train`, as a user types it, and then `dovetail train --resume`; with `files` too, from
forty Parquet files, whose cache is thrown away now and then, so that some kills come while it is written. With
`sharded` two workers own the rows, and the command that watches them is killed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as arrow_parquet

from dovetail.runtime.checkpoint import PARTIAL
from dovetail.runtime.launch.start import start
from dovetail.runtime.trainer.trainer import Trainer
from dovetail.spec.run import Run, RunData, RunModel, RunWorker
from dovetail.spec.run_sections import RunSaving, RunTable
from tests.data.test_same_samples import table_of
from tests.runtime.runs import ADAM, DATA, NUM_ROWS, State, last_state, make_run

MODEL = RunModel(name="ctr-dnn", options={"num_rows": NUM_ROWS, "width": 4, "hidden": [16, 8]})
EPOCHS = 5
"""For each kill, and after the last one: however fast the machine, the run is not over before its next kill."""
PATIENCE_S = 300.0


FILES = 40
START_S = 6.0
"""Within so long after its start some kills of a command come, whatever it has come to: before its first step, too."""


Begin = Callable[[Run, Path], int]
"""Begins a life in a folder, and returns its process."""


def run_of(kind: str, folder: Path, kills: int) -> Run:
    """Return a run that is long enough for so many kills."""
    run = make_run(
        model=MODEL,
        data=DATA,
        samples=2000,
        batch=50,
        epochs=EPOCHS * (kills + 1),
        optimizer=ADAM,
        checkpoint=RunSaving(every_steps=7),
    )
    if kind == "sharded":
        return msgspec.structs.replace(run, workers=(RunWorker(count=2),), table=RunTable(place="sharded"))
    run = msgspec.structs.replace(run, workers=(RunWorker(),), table=RunTable(place="local", device="cpu"))
    if kind != "files":
        return run
    (folder / "data").mkdir()
    for number in range(FILES):
        arrow_parquet.write_table(table_of(50, shift=number), folder / "data" / f"{number:02}.parquet")
    options = {"path": str(folder / "data"), "cache": str(folder / "cache"), "max_bad_rows": 2000, "label": "label"}
    options |= {"dense": ["price"], "slots": ["age", "colour", "tags"], "multi_valued": ["tags"]}
    return msgspec.structs.replace(
        run, data=RunData(name="parquet", options=options, block_samples=10, window_samples=400)
    )


def train_under_kills(folder: Path, seed: int, kills: int, begin: Begin, kind: str) -> dict[str, float]:
    """Train twice, in peace and killed so often, from before the first step to the middle of a checkpoint; compare."""
    run, cache = run_of(kind, folder, kills), folder / "cache"
    begun_s, draw = time.monotonic(), random.Random(seed)
    steps_of_life = EPOCHS * 2000 // 50
    done = while_saving = while_caching = 0
    for kill in range(kills):
        step = 0 if kill == 0 else steps_of_life * (kill - 1) + draw.randrange(steps_of_life)
        while_saves = kill % 2 == 1
        later_s = draw.uniform(0.0, 0.005 if while_saves else 0.1)
        parts = None
        if kind == "files" and kill % 4 == 2:  # so many parts are in the cache by then, of those that it lacks
            shutil.rmtree(cache, ignore_errors=True)
            parts, later_s = draw.randrange(FILES), draw.uniform(0.0, 0.005)
        start_s = draw.uniform(0.0, START_S) if kind in ("files", "sharded") and kill % 4 == 0 else None
        partial = _begun_in(folder / "killed")
        done += _lives(
            begin,
            run,
            folder / "killed",
            at_step=step,
            later_s=later_s,
            while_saves=while_saves,
            start_s=start_s,
            has_parts=None if parts is None else lambda parts=parts: _parts_in(cache) >= parts,
        )
        while_saving += bool(_begun_in(folder / "killed") - partial)
        while_caching += parts is not None and _parts_in(cache) < FILES
    if _lives(begin, run, folder / "killed"):
        raise TimeoutError("a run did not end")
    shutil.rmtree(cache, ignore_errors=True)
    if _lives(begin, run, folder / "whole"):
        raise TimeoutError("a run did not end")
    whole, killed = last_state(folder / "whole"), last_state(folder / "killed")
    return {
        "kills": done,
        "while_saving": while_saving,
        "while_caching": while_caching,
        "steps": killed.manifest.step,
        "is_equal": _are_equal(whole, killed),
        "seconds": time.monotonic() - begun_s,
    }


def _begun_in(folder: Path) -> set[Path]:
    """Return the checkpoints that were begun, and are not whole."""
    return set((folder / "checkpoints").glob(f"*{PARTIAL}"))


def _parts_in(cache: Path) -> int:
    return sum(1 for _ in cache.glob("*.part"))


def _are_equal(one: State, other: State) -> bool:
    """Say whether two states are the same to the last bit."""
    pairs = [
        (one.dense, other.dense),
        *((vector, other.dense_state[name]) for name, vector in one.dense_state.items()),
        *zip(one.keys, other.keys, strict=True),
        *zip(one.rows, other.rows, strict=True),
    ]
    return one.manifest.step == other.manifest.step and all(np.array_equal(*pair) for pair in pairs)


def _fork(run: Run, folder: Path) -> int:
    """Have a fork of this process train."""
    child = os.fork()
    if not child:
        status = 1
        try:
            start(run, folder, resumed=_newest_step(folder) >= 0)
            status = 0
        finally:
            os._exit(status)
    return child


def _command(run: Run, folder: Path) -> int:
    """Have `dovetail train` train."""
    file = folder.with_suffix(".json")
    file.write_bytes(msgspec.json.encode(run))
    how = ["--resume", str(folder)] if _newest_step(folder) >= 0 else [str(file), "--out", str(folder)]
    command = [str(Path(sys.executable).parent / "dovetail"), "train", *how, "--json"]
    log = (os.POSIX_SPAWN_OPEN, 1, f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    actions = [log, (os.POSIX_SPAWN_DUP2, 1, 2)]
    return os.posix_spawn(command[0], command, os.environ, file_actions=actions)


def _lives(
    begin: Begin,
    run: Run,
    folder: Path,
    *,
    at_step: int | None = None,
    later_s: float = 0.0,
    while_saves: bool = False,
    start_s: float | None = None,
    has_parts: Callable[[], bool] | None = None,
) -> bool:
    """Have a process train, and kill it so long after a checkpoint of a step or a later one; say whether it lived.

    With `while_saves` the next checkpoint has been begun by then. With `start_s` it is killed so long after its start,
    whatever it has come to, and with `has_parts` as soon as the cache has so many, of whatever step.
    """
    child = begin(run, folder)
    patient_until_s = kill_s = time.monotonic() + PATIENCE_S
    if start_s is not None:
        kill_s = time.monotonic() + start_s
    while time.monotonic() < kill_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if status:
                raise RuntimeError(f"a run ended with status {status}")
            return False
        if at_step is not None and kill_s == patient_until_s:
            if has_parts is not None:
                is_time = has_parts()
            else:
                is_time = _newest_step(folder) >= at_step and (not while_saves or bool(_begun_in(folder)))
            kill_s = time.monotonic() + later_s if is_time else kill_s
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint that is whole; -1 before there is one."""
    kept = (folder / "checkpoints").glob(f"step-{10 * '[0-9]'}/manifest.json")
    return max((int(path.parent.name.removeprefix("step-")) for path in kept), default=-1)


if __name__ == "__main__":
    _ = Trainer  # what a life would import
    _kind = sys.argv[4] if len(sys.argv) > 4 else "local"
    _begin = _fork if _kind == "local" else _command
    print(json.dumps(train_under_kills(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), _begin, _kind)))
