"""What the suite as a whole needs: compiled kernels shared by two processes, and a list of who starts others."""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

gc.disable()  # until all is imported: what is loaded stays, and is no garbage to look for

# Two of us share the cores: threads that wait for each other would only turn round and round.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
# Virtual machines say that they have tiles (AMX), and do not let oneDNN use them for products in bfloat16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import hypothesis
import pytest
from numba.core.caching import IndexDataCacheFile

# Examples are drawn anew with `make slow` alone: whether the suite passes is nobody's luck.
hypothesis.settings.register_profile("same", derandomize=True, print_blob=True)
hypothesis.settings.register_profile("anew", print_blob=True)
hypothesis.settings.load_profile("same")

PROCESSES = (
    "benchmarks/",
    "charts/test_plan.py::test_no_words_leave_the_page",
    "cli/test_doctor.py",
    "cli/test_methods_and_catalogue.py::test_a_function_of_the_users",
    "cli/test_methods_and_catalogue.py::test_a_policy_is_saved",
    "cli/test_methods_and_catalogue.py::test_compare_",
    "cli/test_plan.py::test_help",
    "cli/test_profile.py",
    "cli/test_simulate.py::test_a_picture",
    "cli/test_train.py",
    "dashboard/test_browser.py",
    "dashboard/test_cluster.py",
    "dashboard/test_limits.py",
    "dashboard/test_server.py",
    "e2e/test_wheel.py",
    "embedding/test_any_order.py",
    "embedding/test_checkpoint.py",
    "embedding/test_disk_tier.py",
    "embedding/test_power_cut.py",
    "models/test_load.py::test_initial_values_are_the_same_in_another_process",
    "models/test_own_model_example.py",
    "models/test_training.py",
    "planner/test_exact.py::test_on_extreme_problems",
    "planner/test_exact.py::test_with_limits_that_bind",
    "planner/test_memory.py::test_every_method",
    "planner/test_methods.py",
    "planner/test_reinforce.py",
    "profiler/test_layers.py::test_two_workers",
    "profiler/test_links.py",
    "test_machine.py",
    "runtime/dense/",
    "runtime/dispatch/test_simulation.py",
    "runtime/finished/",
    "runtime/launch/hosts/test_ssh.py",
    "runtime/launch/test_",
    "runtime/monitor/",
    "runtime/prepare/",
    "runtime/trainer/",
    "runtime/test_",
    "runtime/worker/test_control.py",
    "runtime/worker/test_rendezvous.py",
    "runtime/worker/test_ring.py",
    "runtime/worker/test_stage_loop.py",
    "scheduler/test_costates.py::test_two_jobs_share",
    "serve/test_daemon.py",
    "serve/test_faults.py",
    "serve/test_fuzzed.py",
    "serve/test_hardening.py",
    "serve/test_killed.py",
    "serve/test_loss.py",
    "simulator/test_queueing.py",
    "testbed/",
    "transport/test_any_letters.py",
    "transport/test_calls.py",
    "transport/test_strangers.py",
)
"""How the ids of tests begin, below this folder, that start processes, train, or take long: `make quick` goes without.

Where some file of a folder stands here and others do not, the others are for the unit tests.
"""


COMPARES = re.compile(r"allclose|approx\(|array_equal|assert_close|assert_equals|assert_same_state|torch\.equal")
"""How tests compare numbers that were computed."""
WITHOUT_KERNELS = ("catalogue/", "charts/", "cost/", "planner/", "scheduler/", "simulator/", "spec/")
"""Folders of tests whose numbers come from plain Python or Numba: they need no kernels of a maker."""


@functools.cache
def _compares_numbers(path: Path) -> bool:
    """Say whether a file compares numbers that the kernels of a maker may have computed."""
    below = path.relative_to(Path(__file__).parent).as_posix()
    return not below.startswith(WITHOUT_KERNELS) and COMPARES.search(path.read_text()) is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the list, and those of files that compare numbers."""
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(PROCESSES):
            item.add_marker(pytest.mark.processes)
        if _compares_numbers(item.path):
            item.add_marker(pytest.mark.numbers)


def pytest_collection_finish() -> None:
    """Look for garbage in what tests make, not in what was imported for them."""
    gc.freeze()
    gc.enable()


_started: list[str] = []


def _note_start(event: str, arguments: tuple[Any, ...]) -> None:
    """Note every Python that is started: a tool of the system that a library asks for is nobody's test."""
    if event == "subprocess.Popen" and str(arguments[0]) == sys.executable:
        _started.append(" ".join(map(str, arguments[1]))[:200])


sys.addaudithook(_note_start)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin to note, before the first fixture."""
    _started.clear()


@pytest.fixture(autouse=True)
def _only_listed_tests_start_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep `make quick` quick."""
    yield
    if _started and request.node.get_closest_marker("processes") is None:
        pytest.fail(f"this test started a process; mark it `processes`, or list it in tests/conftest.py: {_started[0]}")


def _one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let one process at a time read or write the cache of a folder."""

    @functools.wraps(method)
    def locked(cache: Any, *arguments: Any) -> Any:
        try:
            folder = os.open(cache._cache_path, os.O_RDONLY)
        except OSError:  # there is no such folder yet, and so nothing to share
            return method(cache, *arguments)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            return method(cache, *arguments)
        finally:
            os.close(folder)

    return locked


# Numba numbers the variants of a kernel by what its index holds, and writes the index before the kernel: two processes
# that compile two variants at once would give both the same number, and one could load what the other has yet to write.
IndexDataCacheFile.save = _one_at_a_time(IndexDataCacheFile.save)
IndexDataCacheFile.load = _one_at_a_time(IndexDataCacheFile.load)
