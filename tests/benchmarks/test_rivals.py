"""The other sides of the comparisons: they run, they train, and they say how fast."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from testbed import available

FOLDER = Path(__file__).parents[2] / "benchmarks" / "rivals"
IN_SHORT = ("--seconds", 0.5, "--patience", 0, "--warm-up", 0, "--batch", 256)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "rivals.npz"
    load("make_data").make_data(file, num_samples=2048)
    return file


def test_every_slot_has_rows_of_its_own(data: Path) -> None:
    with np.load(data) as arrays:
        slots = arrays["ids"] // 100_000
        assert arrays["dense"].shape == (2048, 13)
        assert set(arrays["labels"]) == {0, 1}

    assert (slots == np.arange(26)).all()


def test_plain_pytorch_says_how_fast_it_trains(data: Path) -> None:
    result = load("side").run_side("plain_pytorch", "--data", data, *IN_SHORT, "--threads", 1, timeout_s=250)

    assert result["samples_per_s"] > 0
    assert 0 < result["loss"] < 1


@pytest.mark.slow
@pytest.mark.skipif(not available().cpu_quota, reason=available().why_not.get("cpu_quota", ""))
def test_ddp_trains_under_quotas(data: Path) -> None:
    quota = ("--quota", "0.5,0.25")
    result = load("side").run_side("ddp_pytorch", "--data", data, *IN_SHORT, *quota, timeout_s=250)

    assert result["processes"] == 2
    assert 0 < result["loss"] < 1


def test_only_windows_in_which_the_machine_was_ours_count(capsys: pytest.CaptureFixture[str]) -> None:
    rates = load("rates")
    disturbed = [rates.Window(samples_per_s=10.0, other_cores=0.9)] * 5
    quiet = [rates.Window(samples_per_s=rate, other_cores=0.0) for rate in (100.0, 300.0, 200.0)]

    rates.print_result("few", [*disturbed, *quiet[:2]])
    rates.print_result("enough", [*disturbed, *quiet])

    few, enough = capsys.readouterr().out.splitlines()
    assert '"samples_per_s": 10.0' in few
    assert '"samples_per_s": 200.0' in enough
