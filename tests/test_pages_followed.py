"""Pages followed to the letter: every command of them is typed, every program run, and what comes out compared."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.console_pages import ROOT, as_newcomers, blocks_of, follow, in_this_process, is_shown

DOCS = ROOT / "docs"
QUICK = (
    "start/first-plan.md",
    "start/first-simulation.md",
    "guides/machines.md",
    "guides/write-a-policy.md",
    "guides/replay-a-trace.md",
)
TRAINING = (
    "../README.md",
    "start/install.md",
    "start/first-training.md",
    "guides/larger-than-memory.md",
    "guides/coming-from.md",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # as in a clone
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "118")
    return tmp_path


@pytest.mark.parametrize("page", QUICK)
def test_a_page_that_trains_nothing_shows_what_comes_out(page: str, folder: Path) -> None:
    assert follow(DOCS / page, folder, in_this_process) == []


@pytest.mark.slow  # half a minute to two, each
@pytest.mark.timeout(900)
@pytest.mark.processes
@pytest.mark.parametrize("page", [*QUICK, *TRAINING])
def test_a_page_shows_what_a_newcomer_sees(page: str, folder: Path) -> None:
    assert follow(DOCS / page, folder, as_newcomers) == []


def test_the_program_of_the_first_training_is_an_example() -> None:
    shown = next(block for block in blocks_of(DOCS / "start/first-training.md") if block.file)

    assert shown.text == (ROOT / "examples" / shown.file).read_text(encoding="utf-8")


def test_start_pages_are_all_followed() -> None:
    assert {f"start/{page.name}" for page in (DOCS / "start").glob("*.md")} <= {*QUICK, *TRAINING}


@pytest.mark.parametrize(
    ("shown", "output", "expected"),
    [
        ("speed 1.2 k samples/s", "speed   900 samples/s\n", True),
        ("speed 1.2 k samples/s", "speed   900 samples/s\nwarning: slow\n", False),
        ("a\n...\nz 1", "a\nb\nc\nz 2\n", True),
        ("a\n...\nz", "a\nb\n", False),
        ("error: no plan", "", False),
        (" 1  x\n ─── ", "loading the planner ...\n 2     x\n ─────\n", True),
    ],
)
def test_what_a_page_shows_is_compared_but_for_numbers(shown: str, output: str, expected: bool) -> None:
    assert is_shown(shown.splitlines(), output) is expected


def test_a_page_that_shows_something_else_is_found_out(folder: Path) -> None:
    page = folder / "page.md"
    page.write_text("```console\n$ dovetail --version\ndovetail, 3 of them\n$ dovetail --version\ndovetail 7\n```\n")

    wrong = follow(page, folder, in_this_process)

    assert len(wrong) == 1
    assert "3 of them" in wrong[0]


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="mkdocs-material is not installed")
@pytest.mark.processes
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    made = {page.relative_to(tmp_path / "site").as_posix() for page in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "start/install.html", "reference/python.html", "results/sharded.html"} <= made
    for page in (tmp_path / "site").rglob("*.html"):
        assert 'src="http' not in page.read_text(encoding="utf-8"), f"{page} asks an outside host"
