"""Runs that go on after something happened to their files: they end as one that nothing happened to, or are refused."""

import shutil
from pathlib import Path
from random import Random

import msgspec
import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run_sections import RunOptimizer
from testbed.direct_servers import DirectServers
from tests.runtime.runs import make_run
from tests.runtime.test_damage import harms, parameters_in

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, Path, list[bytes]]:
    """A run's folder after two epochs, its run file for three, and what it holds after three."""
    place = tmp_path_factory.mktemp("resumed")
    run = make_run(samples=400, servers=2, optimizer=RunOptimizer(name="adam", learning_rate=0.01), epochs=3)
    (place / "run.json").write_bytes(msgspec.json.encode(run))
    for epochs in (1, 2):
        shorter = msgspec.structs.replace(run, training=msgspec.structs.replace(run.training, epochs=epochs))
        prepare(shorter, place / "run", resume=epochs > 1)
        alone = DirectServers(place / "run")
        alone.run()
        alone.close()
    whole = Path(shutil.copytree(place / "run", place / "whole"))
    prepare(run, whole, resume=True)
    alone = DirectServers(whole)
    alone.run()
    alone.close()
    return place / "run", place / "run.json", parameters_in(checkpoints.newest(whole), Blueprint.read(whole))


def storm(trained: tuple[Path, Path, list[bytes]], tmp_path: Path, seed: int, cases: int) -> tuple[int, int]:
    """Harm one file of a run, then go on with it; return how often it ended, and how often it was refused."""
    folder, run_file, expected = trained
    random, ended = Random(seed), 0
    for number in range(cases):
        place = Path(shutil.copytree(folder, tmp_path / f"run-{number}"))
        files = sorted(path for path in place.rglob("*") if path.is_file())
        harms(random, random.choice(files), files)()
        with_file = [str(run_file)] if random.random() < 0.5 else []

        result = RUNNER.invoke(app, ["train", *with_file, "--resume", str(place), "--epochs", "3", "--in-process"])

        if result.exit_code == 0:
            ended += 1
            assert parameters_in(checkpoints.newest(place), Blueprint.read(place)) == expected
        else:
            assert isinstance(result.exception, SystemExit), result.exception
            assert result.exit_code == 1
            assert "error: " in result.stderr
            assert "hint: " in result.stderr
        shutil.rmtree(place)
    return ended, cases - ended


def test_a_run_with_a_damaged_file_ends_as_it_would_have_or_is_refused(trained, tmp_path):
    ended, refused = storm(trained, tmp_path, seed=1, cases=15)

    # Most harms hit a checkpoint, and there is one before it; a blueprint that is gone needs the run file.
    assert ended > 7
    assert ended + refused == 15


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_runs_with_a_damaged_file_end_as_they_would_have_or_are_refused(trained, tmp_path, seed):
    ended, refused = storm(trained, tmp_path, seed, cases=500)

    assert ended > refused > 0
