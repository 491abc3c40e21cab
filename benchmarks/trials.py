"""Runs of a model that counts, started and watched from outside: by commands, files and signals, so of any version."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

SLOTS, ROWS = 4, 240
SAMPLES, BATCH = 6000, 60
SECONDS = 20.0
"""What a run takes that nothing is done to."""
STRIKE_AT = 20
"""The step from which on things are done to runs."""
MOST_S = 240.0
"""No run is watched for longer."""
SHARED = Path("/dev/shm")


# -- the model, which the processes of a run import from here ---------------------------------------------------------


class Count(nn.Module):
    """A loss whose gradient is -1 for every use of a row, and -1 a sample for its own parameter."""

    def __init__(self, pause_s: float, hang_at: str) -> None:
        """Wait for so long with every sample; whoever finds the file `hang_at` takes it away and hangs."""
        super().__init__()
        self.samples = nn.Parameter(torch.zeros(1))
        self._pause_s, self._hang_at = pause_s, hang_at

    def forward(self, pooled: Tensor, labels: Tensor) -> Tensor:
        """Count."""
        with suppress(FileNotFoundError):
            Path(self._hang_at).rename(f"{self._hang_at}.taken")
            time.sleep(100_000)
        time.sleep(self._pause_s * len(labels))
        return -pooled.sum() - self.samples.sum() * len(labels)


def counting_model(schema: Any, pause_s: float, hang_at: str) -> nn.Module:
    """Return the model as a chain of two layers, whatever the version at hand calls a chain."""
    try:
        graph = importlib.import_module("dovetail.models.layer_graph").LayerGraph
    except ModuleNotFoundError:
        graph = importlib.import_module("dovetail.models.chain").Chain
    block = importlib.import_module("dovetail.models.block").Block
    embedding = importlib.import_module("dovetail.models.embedding").SlotEmbedding
    rows = embedding(num_rows=ROWS, width=1, num_slots=schema.num_slots)
    recipe = importlib.import_module("dovetail.models.recipe").Recipe(metric="none")
    layers = [
        block(name="embedding", kind="embedding", module=rows, after=(), reads=("ids", "offsets")),
        block(name="loss", kind="loss", module=Count(pause_s, hang_at), reads=("labels",)),
    ]
    made: nn.Module = graph(layers, recipe=recipe)
    return made


# -- a run, from outside -----------------------------------------------------------------------------------------------


class Trial:
    """A run that is under way: its launcher is a child of this process."""

    def __init__(self, tree: Path, place: Path, *, workers: int, seconds: float, samples: int, **sections: Any) -> None:
        """Start `dovetail train` of a tree with a run file that is written to `place`; `out` is the run's folder."""
        self.hang_at, self._place = place / "hang", place
        self.folder = Path(sections.pop("out", place / "run"))
        options = {"pause_s": seconds * workers / samples, "hang_at": str(self.hang_at)}
        data = {"num_slots": SLOTS, "num_multi_valued": 0, "num_dense": 3, "rows_per_slot": ROWS // SLOTS}
        training = {"batch": BATCH, "micro_batch": 20, "reduction": "sum", "seed": 3} | sections.pop("training")
        run = {
            "model": {"name": "trials:counting_model", "options": options},
            "data": {"options": data, "samples": samples, "block_samples": 64},
            "training": training,
            "optimizer": {"name": "sgd", "rows": "sgd", "learning_rate": 1.0},
            "worker": [{"count": workers}],
            "faults": {"patience_s": 4.0, "restarts": 1000},
            **sections,
        }
        (place / "run.json").write_text(json.dumps(run))
        (place / "temporary").mkdir()
        path = os.pathsep.join([str(tree / "src"), str(Path(__file__).parent)])
        self._environment = os.environ | {"PYTHONPATH": path, "TMPDIR": str(place / "temporary")}
        self.said: list[str] = []
        self.steps: list[tuple[float, int]] = []
        """When the launcher said which step the run is at."""
        self.launcher = self.command(
            "train", str(place / "run.json"), "--out", str(self.folder), errors=subprocess.PIPE
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def command(self, *words: str, errors: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Start a command of the tree."""
        program = "from dovetail.cli.main import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", program, *words],
            cwd=self._place, env=self._environment, stdout=subprocess.DEVNULL, stderr=errors, text=True,
        )  # fmt: skip

    def _listen(self) -> None:
        """Keep what the launcher says."""
        for line in self.launcher.stderr or ():
            self.said.append(line.strip())
            if found := re.search(r"%  step ([\d,]+)  ", line):
                self.steps.append((time.monotonic(), int(found[1].replace(",", ""))))

    @property
    def step(self) -> int:
        """Return the step that was said last."""
        return self.steps[-1][1] if self.steps else 0

    def wait(self, is_so: Callable[[], bool], seconds: float = MOST_S) -> bool:
        """Wait until something is so, or the run is over, or the time is; say whether it is so."""
        ends_s = time.monotonic() + seconds
        while not (found := is_so()) and self.launcher.poll() is None and time.monotonic() < ends_s:
            time.sleep(0.02)
        return found

    def wait_for_step(self, step: int, seconds: float = MOST_S) -> bool:
        """Wait until the run is that far; say whether it is."""
        return self.wait(lambda: self.step >= step, seconds)

    def begin(self) -> None:
        """Wait until the run is well under way."""
        if not self.wait_for_step(STRIKE_AT):
            raise SystemExit(f"the run does not get to step {STRIKE_AT}: {self.said[-5:]}")

    def processes(self) -> dict[str, int]:
        """Return the processes of the run by name: each writes to a log of that name."""
        found = {}
        for child in psutil.process_iter():
            with suppress(OSError):
                log = Path(f"/proc/{child.pid}/fd/2").readlink()
                if log.parent == self.folder / "logs":
                    found[log.stem] = child.pid
        return found

    def kill_starter(self) -> bool:
        """Kill the process that starts workers; False where there is none yet."""
        with suppress(psutil.Error):
            for child in psutil.Process(self.launcher.pid).children():
                words = " ".join(child.cmdline())  # of this tree, or of an older one
                if "dovetail.runtime.launch.fork_server" in words or "multiprocessing.forkserver" in words:
                    child.kill()
                    return True
        return False

    def stood_still_s(self, since_s: float, until_s: float) -> float:
        """Return the longest time without a new step."""
        longest_s, last_s, last = 0.0, since_s, self.step_at(since_s)
        for moment_s, step in [*self.steps, (until_s, sys.maxsize)]:
            if since_s <= moment_s <= until_s and step > last:
                longest_s, last_s, last = max(longest_s, moment_s - last_s), moment_s, step
        return longest_s

    def step_at(self, moment_s: float) -> int:
        """Return the step that a run was at."""
        return max((step for when_s, step in self.steps if when_s <= moment_s), default=0)

    def outcome(self, seconds: float = MOST_S) -> str:
        """Wait for the end of the run; return how it ended and what its last checkpoint counts."""
        self.wait(lambda: False, seconds)
        status = self.launcher.poll()
        if status is None:
            return f"not over: at step {self.step}"
        error = next((line for line in self.said if line.startswith(("error:", "Traceback", "Aborted"))), "")
        return f"status {status}{', ' + error if error else ''}; {counted(self.folder)}"

    def end(self) -> None:
        """End whatever is left, by its number."""
        left = list(self.processes().values()) if self.launcher.poll() is None else []
        for number in [self.launcher.pid, *left]:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.launcher.wait()


@contextmanager
def trial(tree: Path, **how: Any) -> Iterator[Trial]:
    """Have a run in a folder that goes with it."""
    how = {"workers": 2, "seconds": SECONDS, "samples": SAMPLES, "training": {}} | how
    with tempfile.TemporaryDirectory() as place:
        under_way = Trial(tree, Path(place), **how)
        try:
            yield under_way
        finally:
            under_way.end()


def checkpoints(folder: Path) -> Iterator[tuple[str, int, int, int]]:
    """Yield the checkpoints of a run: name, samples by the manifest, by the dense parameters, and uses of rows."""
    for place in sorted(folder.glob("checkpoints/step-*[0-9]")):
        manifest = json.loads((place / "manifest.json").read_text())
        claimed = manifest["position"] - sum(last - first for first, last in manifest.get("gaps", ()))
        dense = sum(float(load_file(path)["values"].sum()) for path in place.glob("dense-*.safetensors"))
        tables = [load_file(path)["rows"][:, 0] for path in place.glob("table-0/*/*/part-*.safetensors")]
        yield place.name, claimed, round(dense), int(sum(np.rint(rows).sum() for rows in tables))


def counted(folder: Path) -> str:
    """Return what the last checkpoint counts, beside what its manifest says."""
    found = list(checkpoints(folder))
    if not found:
        return "no checkpoint"
    name, claimed, dense, uses = found[-1]
    verdict = "exact" if dense == claimed and uses == SLOTS * claimed else "WRONG"
    return f"{verdict}: {name} of {claimed} samples has {dense} in dense, {uses / SLOTS:g} in rows"
