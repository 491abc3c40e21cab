"""Disks that are full or read-only: an error with a way out, nothing half written, and no traceback."""

import contextlib
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.runtime import train
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import RunManifest, newest
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.prepare.run_folder import prepare
from tests.runtime.runs import make_run
from tests.runtime.test_checkpoint import small_disk

RUN = make_run(samples=400)
RUN_FILE = """
[model]
name = "ctr-dnn"
options = { num_rows = 80, width = 4, hidden = [16] }
[data]
options = { truth = "logistic", num_slots = 4, num_multi_valued = 1, num_dense = 3, rows_per_slot = 20 }
samples = 400
"""


def fill(folder: Path) -> None:
    """Leave no room on a disk."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass


@contextlib.contextmanager
def read_only(folder: Path):
    """Have a mounted folder read-only for a while."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_start_on_a_full_disk_is_refused_and_leaves_nothing(tmp_path):
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        fill(disk)

        with pytest.raises(TrainingError, match=r"cannot be written: .*No space left") as caught:
            prepare(RUN, disk / "run")

        assert "free some space" in caught.value.hint
        assert [path.name for path in disk.iterdir()] == ["filler"]


def test_a_start_on_a_read_only_disk_is_refused(tmp_path):
    refusal = pytest.raises(TrainingError, match=r"cannot be written: Read-only file system")
    with small_disk(tmp_path / "disk", 1 << 20) as disk, read_only(disk), refusal:
        prepare(RUN, disk / "run")


@pytest.mark.parametrize("harm", ["full", "read-only"])
def test_a_resume_on_a_bad_disk_leaves_the_run_as_it_was(tmp_path, harm):
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        prepare(RUN, disk / "run")
        before, run_before = everything_in(disk / "run"), Blueprint.read(disk / "run").run
        if harm == "full":
            fill(disk)
        refusal = pytest.raises(TrainingError, match=r"cannot be written: ")
        with read_only(disk) if harm == "read-only" else contextlib.nullcontext(), refusal as caught:
            prepare(make_run(samples=400, workers=1), disk / "run", resume=True)
        (disk / "filler").unlink(missing_ok=True)

        assert caught.value.hint
        after = everything_in(disk / "run")
        kept = {name for name in before if not name.startswith(("keys/", "journal"))}
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        assert Blueprint.read(disk / "run").run == run_before


@pytest.mark.parametrize("harm", ["full", "read-only"])
def test_the_command_line_says_what_is_wrong_with_the_disk(tmp_path, harm):
    (tmp_path / "run.toml").write_text(RUN_FILE)
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        fill(disk)
        with read_only(disk) if harm == "read-only" else contextlib.nullcontext():
            result = CliRunner().invoke(app, ["train", str(tmp_path / "run.toml"), "--out", str(disk / "run")])

    assert result.exit_code == 1
    assert result.stderr.startswith("training into") or result.stderr.startswith("error: ")
    assert "error: " in result.stderr
    assert "cannot be written" in result.stderr
    assert "hint: free some space" in result.stderr
    assert "Traceback" not in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_an_export_to_a_full_disk_says_so(tmp_path):
    (tmp_path / "run.toml").write_text(RUN_FILE)
    runner = CliRunner()
    assert runner.invoke(app, ["train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--in-process"])
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        fill(disk)
        result = runner.invoke(app, ["export", str(tmp_path / "run"), "--out", str(disk / "model")])

    assert result.exit_code == 1
    assert "error: " in result.stderr
    assert "hint: " in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_a_run_that_cannot_write_its_summary_ends_all_the_same_with_its_figures(tmp_path):
    folder = tmp_path / "run"

    def occupy(report):
        (folder / "summary.json").mkdir(exist_ok=True)  # nothing can be put in its place

    result = train(run=RUN, folder=folder, on_report=occupy)

    assert (folder / "summary.json").is_dir()
    assert result.is_complete
    assert result.samples == RunManifest.read(newest(folder)).position == 400
    assert result.checkpoint == newest(folder)
    assert set(result.workers) == {"worker-0", "worker-1"}
