"""Packages whose names are imported when they are first asked for."""

import importlib
import subprocess
import sys

import pytest

PACKAGES = (
    "dovetail",
    "dovetail.data",
    "dovetail.embedding",
    "dovetail.manifests",
    "dovetail.models",
    "dovetail.orchestrate",
    "dovetail.planner",
    "dovetail.profiler",
    "dovetail.runtime",
    "dovetail.scheduler",
    "dovetail.serve",
)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_that_a_package_lists_is_there(package):
    module = importlib.import_module(package)

    assert len(module.__all__) > 3
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_no_package_has_is_refused(package):
    with pytest.raises(AttributeError, match=f"`{package}` has no attribute `nothing`"):
        importlib.import_module(package).nothing  # noqa: B018


@pytest.mark.processes
def test_importing_all_packages_loads_no_torch():
    code = f"import sys, {', '.join(PACKAGES)}; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_shows_its_names_before_any_is_imported(package):
    module = importlib.import_module(package)
    shown = [name for name in dir(module) if not name.startswith("_")]

    assert shown == sorted(name for name in module.__all__ if not name.startswith("_"))


COMMANDS = ("evaluate", "export", "join", "plan", "predict", "profile", "resume", "run", "serve", "simulate", "train")


def test_commands_are_functions_of_their_names_with_words_for_help():
    import dovetail
    from dovetail.runtime import train

    assert set(COMMANDS) <= set(dir(dovetail))
    assert [name for name in COMMANDS if not callable(getattr(dovetail, name))] == []
    assert [name for name in COMMANDS if not getattr(dovetail, name).__doc__] == []
    assert dovetail.train is train
    assert dovetail.train.__annotations__["return"] == "TrainingResult"
    assert dovetail.data.load_data is importlib.import_module("dovetail.data.load").load_data


@pytest.mark.processes
def test_the_first_import_of_all_takes_neither_torch_nor_numpy():
    code = "import dovetail, sys; dir(dovetail); sys.exit(bool({'torch', 'numba', 'numpy'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
