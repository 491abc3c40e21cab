"""`dovetail doctor`, as a user meets it: on this machine, and on machines with something broken."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail import __version__
from dovetail.cli.doctor import examine_torch
from dovetail.machine import Cores

DOVETAIL = Path(sys.executable).parent / "dovetail"
BROKEN_TORCH = 'raise OSError("libcudart.so.12: cannot open shared object file")\n'
"""Stands in front of the real one: these tests then need not wait for it."""


def doctor(*options: str, **environment: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(DOVETAIL), "doctor", *options],
        env=os.environ | {key: str(value) for key, value in environment.items()},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def findings(done: subprocess.CompletedProcess) -> dict[str, dict]:
    return {finding["name"]: finding for finding in json.loads(done.stdout.splitlines()[-1])["findings"]}


@pytest.fixture
def without_torch(tmp_path: Path) -> Path:
    (tmp_path / "torch.py").write_text(BROKEN_TORCH)
    return tmp_path


def test_a_machine_that_can_plan_and_train_is_well():
    done = doctor("--json")
    found = findings(done)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True
    assert found["dovetail"]["says"] == __version__
    assert found["cores"]["facts"]["num_allowed"] == len(os.sched_getaffinity(0))
    assert found["catalogue"]["facts"]["num_types"] > 50
    assert found["kernel cache"]["state"] == "ok"
    assert found["data cache"]["facts"]["writable"] is True
    assert any(name.startswith("cuda") for name in found)
    assert all(finding["hint"] for finding in found.values() if finding["state"] != "ok")


def test_more_threads_than_a_quota_of_cores_allows_are_a_warning_with_the_number_that_fits():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        crowded = examine_torch(Cores(num_installed=8, num_allowed=8, quota=2.5))
        fitting = examine_torch(Cores(num_installed=8, num_allowed=8, quota=4.0))
    finally:
        torch.set_num_threads(before)

    assert (crowded.state, fitting.state) == ("warning", "ok")
    assert crowded.hint.endswith("set OMP_NUM_THREADS=2")


def test_a_torch_that_cannot_be_imported_is_broken_and_the_rest_is_looked_at_all_the_same(without_torch: Path):
    done = doctor(PYTHONPATH=without_torch)
    lines = done.stdout.splitlines()

    assert done.returncode == 1
    assert any(line.startswith("missing  torch") and "libcudart.so.12" in line for line in lines)
    assert any(line.startswith("ok       catalogue") for line in lines)
    assert done.stderr.startswith("error: torch: cannot be imported: OSError")
    assert "hint: pip install" in done.stderr
    assert "Traceback" not in done.stderr


def test_all_that_is_broken_is_in_the_error_and_a_second_choice_is_a_warning(without_torch: Path):
    own = without_torch / "own.toml"
    own.write_text("[[type]]\nnonsense = 1\n")
    chosen = own / "inside-a-file"
    done = doctor("--json", PYTHONPATH=without_torch, DOVETAIL_CATALOGUE=own, NUMBA_CACHE_DIR=chosen)
    report = json.loads(done.stdout)
    kernel_cache = findings(done)["kernel cache"]

    assert done.returncode == 1
    assert report["ok"] is False
    assert "torch: cannot be imported" in report["error"]
    assert "own.toml" in report["error"]
    assert report["hint"]
    assert kernel_cache["state"] == "warning"
    assert f"{chosen} cannot be written" in kernel_cache["says"]
    assert kernel_cache["hint"] == "set NUMBA_CACHE_DIR to a folder that you can write to"


def test_a_package_that_dovetail_stands_on_and_is_not_there_is_broken(tmp_path: Path):
    for name in ("torch", "msgspec"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('No module named {name}')\n")
    done = doctor(PYTHONPATH=tmp_path)

    assert done.returncode == 1
    assert "missing  catalogue     No module named msgspec - hint: pip install dovetail" in done.stdout
    assert "Traceback" not in done.stderr


def test_help_imports_neither_torch_nor_numba_nor_numpy():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom dovetail.cli.main import app\n"
        "for words in ([], ['doctor'], ['link'], ['link', 'serve'], ['link', 'measure']):\n"
        "    assert CliRunner().invoke(app, [*words, '--help']).exit_code == 0\n"
        "print(sorted({'torch', 'numba', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)

    assert done.stdout.strip() == "[]", done.stderr
