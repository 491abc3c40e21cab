"""A parameter server is killed in the middle of a training: it comes back as it was, and no step is done again.

python examples/killed_server.py out/killed
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

DOVETAIL = [sys.executable, "-c", "from dovetail.cli.main import main; main()"]
TRAIN = "train ctr-dnn --workers 2 --set model.options.num_rows=20000 --samples 300000 --epochs 2 --batch 1024 --out"


def main(folder: str) -> None:
    """Train, kill the server on the way, and say what it cost."""
    shutil.rmtree(folder, ignore_errors=True)
    print(f"$ dovetail {TRAIN} {folder}", flush=True)
    training = subprocess.Popen([*DOVETAIL, *TRAIN.split(), folder])
    try:
        before = wait_for_step(folder, training, 10)
        (server,) = (each for each in psutil.Process(training.pid).children(recursive=True) if is_server(each))
        os.kill(server.pid, signal.SIGKILL)
        killed_s = time.monotonic()
        wait_for_step(folder, training, before + 5)
        again_s = time.monotonic() - killed_s
        assert training.wait(100) == 0, "the training failed"
    finally:
        training.kill()
    steps = [line["step"] for line in lines_of(folder)]
    assert steps == sorted(steps), "steps were done again"
    print(
        f"server-0 was killed after step {before}: {again_s:.1f} s later training was further, and no step came twice"
    )


def is_server(process: psutil.Process) -> bool:
    """Say whether a process of the run is its parameter server."""
    return process.name() == "server-0"


def wait_for_step(folder: str, training: subprocess.Popen[bytes], step: int) -> int:
    """Return the last step that counts, once it is `step` or more."""
    until_s = time.monotonic() + 100
    while training.poll() is None and time.monotonic() < until_s:
        done = max((line["step"] for line in lines_of(folder)), default=0)
        if done >= step:
            return done
        time.sleep(0.05)
    raise SystemExit(f"step {step} did not come")


def lines_of(folder: str) -> list[dict[str, int]]:
    """Return the run's metrics so far."""
    file = Path(folder) / "metrics.jsonl"
    whole = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in whole if line.endswith("\n")]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "out/killed")
