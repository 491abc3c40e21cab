"""Every public name of the package has an example, and the examples run."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dovetail
from tests.console_pages import ROOT, as_newcomers, blocks_of
from tests.test_docs import load_generator

load_generator()  # finds its other half
from generate_names import examples

EXAMPLES = examples()
STARTS_PROCESSES = ("run", "join", "serve", "orchestrate")
pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a folder as the start pages leave it, but for the size of its data."""
    folder = tmp_path_factory.mktemp("newcomer")
    for page, file in (("first-plan", "problem.toml"), ("first-simulation", "jobs.json")):
        shown = next(block for block in blocks_of(ROOT / "docs" / "start" / f"{page}.md") if block.file == file)
        (folder / file).write_text(shown.text)
    shutil.copy(ROOT / "examples" / "first_training.py", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        output, status = as_newcomers("dovetail data make clicks.parquet --rows 8000 -o rows_per_slot=100", folder)
        assert status == 0, output
        run_example(EXAMPLES["train"].replace("runs/again", "runs/mine"))
        yield folder
    sys.modules.pop("first_training", None)


def run_example(source: str) -> None:
    """Run a program in this process."""
    exec(compile(source, "example", "exec"), {"__name__": "__main__"})


def test_every_public_name_has_an_example_and_every_example_a_name() -> None:
    assert sorted(EXAMPLES) == sorted(dovetail.__all__)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in STARTS_PROCESSES])
def test_an_example_runs(name: str, place: Path) -> None:
    assert "dovetail" in EXAMPLES[name]

    run_example(EXAMPLES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "orchestrate"])
def test_an_example_that_starts_processes_runs(name: str, place: Path) -> None:
    (place / f"{name}_example.py").write_text(EXAMPLES[name])

    output, status = as_newcomers(f"python {name}_example.py", place)

    assert status == 0, output


@pytest.mark.slow
def test_the_example_of_a_daemon_serves_until_it_is_told_to_end(place: Path) -> None:
    (place / "serve_example.py").write_text(EXAMPLES["serve"])
    program = [sys.executable, "serve_example.py"]
    with subprocess.Popen(program, cwd=place, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.terminate()
        process.wait(60)

    assert said
    assert (place / "cluster").is_dir()


@pytest.mark.slow
def test_the_example_of_a_worker_that_joins_works_until_the_run_is_over(place: Path) -> None:
    (place / "join_example.py").write_text(EXAMPLES["join"])
    train = "dovetail train first_training.py:MyModel --data clicks.parquet --workers 1 --batch 100 --epochs 60"
    words = [sys.executable, "-c", "from dovetail.cli.main import main; main()", *train.split()[1:]]
    with subprocess.Popen([*words, "--out", "runs/shared"], cwd=place, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "%" in line)  # it goes on
        output, status = as_newcomers("python join_example.py", place)
        process.stderr.read()

    assert (process.returncode, status) == (0, 0), output
