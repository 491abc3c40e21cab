"""kill -9 while rows are written back and checkpoints are written: what was acknowledged is whole."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dovetail.embedding import Adagrad, Checkpoint, Table
from tests.embedding.train_until_killed import WIDTH, batch_of
from tests.embedding.twins import DictTable

ROOT = Path(__file__).parents[2]


def run_and_kill(folder: Path, *, num_saves: int, delay_s: float) -> list[str]:
    """Start the training, kill it `delay_s` after `num_saves` saves, and return the lines it managed to print."""
    command = [sys.executable, "-m", "tests.embedding.train_until_killed", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(num_saves)]
        try:
            process.wait(delay_s)
        except subprocess.TimeoutExpired:
            process.kill()
        lines += process.stdout.readlines()
        assert process.wait(30) == -9
    return [line for line in lines if line.endswith("\n")]


def check_everything(folder: Path, acknowledged: dict[str, int]) -> None:
    """Every acknowledged checkpoint is readable, and the newest has the bits of a dict at its step."""
    saved = folder / "saved"
    for name in acknowledged:
        manifest = Checkpoint.newest(saved)[-1].manifest.read(saved / name)
        rows = sum(len(part.keys) for part in Checkpoint(saved, name, manifest).parts())
        assert rows == manifest.num_rows
    model = DictTable(width=WIDTH, optimizer=Adagrad())
    with Table.load(saved, host_rows=30, folder=folder / "rows") as table:
        assert table.step >= max(acknowledged.values())
        for step in range(table.step):
            model.update(*(part if part.ndim > 1 else part.tolist() for part in batch_of(step)))
        keys = sorted(model.rows)
        assert sorted(table.keys().tolist()) == keys
        assert table.rows(keys).tobytes() == np.array([model.rows[key] for key in keys]).tobytes()


def kill_often(folder: Path, times: int) -> None:
    """Kill and go on, again and again."""
    dice = random.Random(times)
    acknowledged: dict[str, int] = {}
    for _ in range(times):
        lines = run_and_kill(folder, num_saves=dice.randint(1, 3), delay_s=dice.uniform(0, 0.03))
        acknowledged |= {line.split()[1]: int(line.split()[0]) for line in lines}
        check_everything(folder, acknowledged)


def test_what_was_acknowledged_survives_a_few_kills(tmp_path):
    kill_often(tmp_path, 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_was_acknowledged_survives_fifty_kills(tmp_path):
    kill_often(tmp_path, 50)
