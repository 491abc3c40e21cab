"""The wheel: built from this tree, installed elsewhere, and run."""

import json
import os
import shutil
import site
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from dovetail.planner.demands import Demands
from dovetail.planner.plan import cheapest_plan
from dovetail.spec import read_problem

ROOT = Path(__file__).parents[2]
IMPORT_ALL = """
import importlib, pkgutil, dovetail
for module in pkgutil.walk_packages(dovetail.__path__, "dovetail."):
    try:
        print(importlib.import_module(module.name).__file__)
    except ModuleNotFoundError as missing:  # of kernels for GPUs, of the daemon, and of Ray
        if missing.name not in ("triton", "starlette", "uvicorn", "ray"):
            raise
"""


def run(*command: object, **options: object) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
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


def make_problem_with(python: Path, folder: Path) -> Path:
    """Make a problem with an installed Dovetail, away from this tree."""
    dovetail = python.parent / "dovetail"
    run(dovetail, "problem", "make", "problem.toml", "--layers", "3", "--types", "2", cwd=folder)
    run(dovetail, "catalogue", cwd=folder)
    return folder / "problem.toml"


def test_the_wheel_has_the_catalogue_and_the_typing_marker(wheel: Path) -> None:
    names = run(sys.executable, "-m", "zipfile", "-l", wheel)

    assert "dovetail/py.typed" in names
    assert "dovetail/catalogue/types.toml" in names


def test_the_wheel_runs_where_this_tree_is_not(wheel: Path, tmp_path: Path) -> None:
    # Dependencies are borrowed from this environment, and kernels, which would be compiled anew, not called: `-m slow`
    # does both.
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    borrowed = next((venv / "lib").glob("python*")) / "site-packages" / "borrowed.pth"
    borrowed.write_text("\n".join(site.getsitepackages()))

    problem = make_problem_with(python, tmp_path)
    plan = cheapest_plan(read_problem(problem), Demands(), clock=time.perf_counter)
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))
    checked = run(python.parent / "dovetail", "check", "problem.toml", "plan.json", "--json", cwd=tmp_path)
    assert json.loads(checked.splitlines()[-1])["cost"] == pytest.approx(plan.cost)
    where = run(python, "-c", IMPORT_ALL, cwd=tmp_path).split()
    assert len(where) > 200
    assert all(path.startswith(str(venv)) for path in where)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_wheel_installs_with_its_dependencies_into_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", venv)
    python = venv / "bin" / "python"
    run(python, "-m", "pip", "install", wheel)

    problem = make_problem_with(python, tmp_path)
    planned = run(python.parent / "dovetail", "plan", problem, "--json", cwd=tmp_path)
    assert json.loads(planned.splitlines()[-1])["optimal"] is True
