"""Packages whose names are imported when they are first asked for."""

import importlib
import subprocess
import sys

import pytest

PACKAGES = ("dovetail.data", "dovetail.embedding", "dovetail.models", "dovetail.orchestrate", "dovetail.runtime")


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
