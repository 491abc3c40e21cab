"""The wheel: built from this tree, installed elsewhere, and run."""

import json
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: object, compiled: bool = True, **options: object) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if not compiled:
        environment["NUMBA_DISABLE_JIT"] = "1"
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment,
        **options,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for name in ("src", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    built = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", built, source)
    return next(built.glob("*.whl"))


def plan_with(python: Path, folder: Path, *, compiled: bool = True) -> dict:
    """Make and plan a problem with an installed Dovetail, away from this tree."""
    dovetail = python.parent / "dovetail"
    run(dovetail, "problem", "make", "problem.toml", "--layers", "3", "--types", "2", cwd=folder)
    run(dovetail, "catalogue", cwd=folder)
    planned = run(dovetail, "plan", "problem.toml", "--json", cwd=folder, compiled=compiled)
    return json.loads(planned.splitlines()[-1])


def test_the_wheel_has_the_catalogue_and_the_typing_marker(wheel: Path) -> None:
    names = run(sys.executable, "-m", "zipfile", "-l", wheel)

    assert "dovetail/py.typed" in names
    assert "dovetail/catalogue/types.toml" in names


@pytest.mark.timeout(300)
def test_the_wheel_runs_where_this_tree_is_not(wheel: Path, tmp_path: Path) -> None:
    # Dependencies are borrowed from this environment, and nothing is compiled; `-m slow` does both.
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    borrowed = next((venv / "lib").glob("python*")) / "site-packages" / "borrowed.pth"
    borrowed.write_text("\n".join(site.getsitepackages()))

    assert plan_with(python, tmp_path, compiled=False)["optimal"] is True
    where = run(python, "-c", "import dovetail; print(dovetail.__file__)", cwd=tmp_path)
    assert str(venv) in where


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_wheel_installs_with_its_dependencies_into_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", venv)
    python = venv / "bin" / "python"
    run(python, "-m", "pip", "install", wheel)

    assert plan_with(python, tmp_path)["optimal"] is True
