"""Whole programs as people write them, each under 40 lines, run as they would be."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = ("deepfm_csv", "deepfm_parquet", "images_dataset", "regression_pandas", "text_head")
pytestmark = pytest.mark.processes


def run(name: str, place: Path) -> str:
    """Run a program in a folder of its own, and return what it prints."""
    paths = os.pathsep.join(path for path in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if path)
    environment = {**os.environ, "PYTHONPATH": paths, "HF_DATASETS_CACHE": str(place / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], cwd=place, env=environment, capture_output=True, text=True,
        timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def figure(text: str, words: str) -> float:
    """Return the number that follows some words."""
    found = re.search(rf"{words} \[?\s*([-+\d.e]+)", text)
    assert found is not None, text
    return float(found[1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 40


@pytest.mark.slow  # the same from Parquet is in the suite
def test_deepfm_from_csv_learns_what_the_rows_hold(tmp_path):
    said = run("deepfm_csv", tmp_path)

    assert figure(said, "best validation loss") < 0.3  # a coin would be at 0.69
    assert (tmp_path / "runs" / "deepfm" / "best").is_dir()
    assert 0.0 <= figure(said, "first scores") <= 1.0  # rows so clear that float32 may round to an end


def test_deepfm_from_parquet_learns_from_the_features_that_are_made(tmp_path):
    said = run("deepfm_parquet", tmp_path)

    assert figure(said, "loss") < 0.3  # user and hour tell it together, neither does alone: a third of them, 0.64
    assert 0.0 <= figure(said, "first scores") <= 1.0
    transforms = json.loads((tmp_path / "model" / "model.json").read_text())["columns"]["transforms"]
    assert [each["name"] for each in transforms] == ["price", "age", "time_hour", "user_x_time_hour"]


def test_ten_classes_of_images_are_told_apart(tmp_path):
    assert figure(run("images_dataset", tmp_path), "right") > 0.9


@pytest.mark.slow  # frames are trained on in tests/runtime/test_data_objects.py
def test_a_regression_on_a_frame_finds_the_line(tmp_path):
    pytest.importorskip("pandas")

    said = run("regression_pandas", tmp_path)

    assert figure(said, "validation loss") < 0.05  # the noise alone is 0.01
    assert figure(said, "prices") == pytest.approx(3.0, abs=0.5)


@pytest.mark.slow  # datasets are trained on there, too
def test_the_head_of_a_text_classifier_learns(tmp_path):
    pytest.importorskip("datasets")

    assert figure(run("text_head", tmp_path), "AUC") > 0.9
