"""What a process really gets of a machine: control groups of both versions, affinity, disk, packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.machine import (
    Cores,
    Memory,
    Package,
    cores,
    cpu_model,
    free_disk_bytes,
    is_writable,
    kernel_cache_folders,
    memory,
    packages,
)

GIB = 1 << 30


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def a_machine(folder: Path, *, group: str, mounts: list[str]) -> Path:
    """Write a /proc with 64 GiB of memory, of which 40 are free, whose process is in a control group."""
    proc = folder / "proc"
    write(proc / "meminfo", f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {40 * GIB // 1024} kB\nHugePages_Total: 0")
    write(proc / "cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\n")
    write(proc / "self" / "cgroup", group)
    write(proc / "self" / "mountinfo", "\n".join(["22 27 0:21 / /proc rw - proc proc rw", *mounts]))
    return proc


def test_version_two_groups_limit_cores_and_memory_and_the_strictest_above_counts(tmp_path: Path):
    top = tmp_path / "cgroup"
    proc = a_machine(tmp_path, group="0::/jobs/mine", mounts=[f"31 23 0:28 / {top} rw - cgroup2 cgroup2 rw"])
    write(top / "jobs/mine/cpu.max", "max 100000")
    write(top / "jobs/cpu.max", "150000 100000")
    write(top / "jobs/mine/memory.max", 8 * GIB)
    write(top / "jobs/mine/memory.current", 5 * GIB)
    write(top / "jobs/mine/memory.stat", f"anon 1\ninactive_file {1 * GIB}")
    write(top / "jobs/memory.max", "max")

    assert cores(proc).quota == 1.5
    # Of the 8 GiB, 5 are held, but one of these can be dropped.
    assert memory(proc) == Memory(total_bytes=64 * GIB, available_bytes=4 * GIB, limit_bytes=8 * GIB)
    assert memory(proc).usable_bytes == 8 * GIB


def test_version_one_groups_limit_cores_and_memory(tmp_path: Path):
    cpu, ram = tmp_path / "cpu,cpuacct", tmp_path / "memory"
    proc = a_machine(
        tmp_path,
        group="4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/",
        # A container sees its own group as the root of the mount.
        mounts=[
            f"32 31 0:29 /docker/abc {cpu} rw - cgroup cgroup rw,cpu,cpuacct",
            f"35 31 0:32 /docker/abc {ram} rw - cgroup cgroup rw,memory",
        ],
    )
    write(cpu / "cpu.cfs_quota_us", 250000)
    write(cpu / "cpu.cfs_period_us", 100000)
    write(ram / "memory.limit_in_bytes", 16 * GIB)
    write(ram / "memory.usage_in_bytes", 2 * GIB)

    assert cores(proc).quota == 2.5
    assert memory(proc) == Memory(total_bytes=64 * GIB, available_bytes=14 * GIB, limit_bytes=16 * GIB)


def test_the_largest_number_of_version_one_and_minus_one_are_no_limits(tmp_path: Path):
    cpu, ram = tmp_path / "cpu", tmp_path / "memory"
    proc = a_machine(
        tmp_path,
        group="4:memory:/\n2:cpu:/",
        mounts=[f"32 31 0:29 / {cpu} rw - cgroup cgroup rw,cpu", f"35 31 0:32 / {ram} rw - cgroup cgroup rw,memory"],
    )
    write(cpu / "cpu.cfs_quota_us", -1)
    write(cpu / "cpu.cfs_period_us", 100000)
    write(ram / "memory.limit_in_bytes", 9223372036854771712)

    assert cores(proc).quota is None
    assert memory(proc) == Memory(total_bytes=64 * GIB, available_bytes=40 * GIB, limit_bytes=None)


@pytest.mark.parametrize("group", ["", "nonsense", "0::/../elsewhere", "0::/not/there"])
def test_a_group_that_cannot_be_seen_is_no_limit(tmp_path: Path, group: str):
    (tmp_path / "cgroup").mkdir()
    mount = f"31 23 0:28 / {tmp_path / 'cgroup'} rw - cgroup2 cgroup2 rw"
    proc = a_machine(tmp_path, group=group, mounts=[mount, "a broken line - cgroup2"])

    assert cores(proc).quota is None
    assert memory(proc).limit_bytes is None


def test_a_system_without_proc_still_has_cores_and_memory(tmp_path: Path):
    assert cores(tmp_path).num_usable >= 1
    assert memory(tmp_path).total_bytes > 0
    assert cpu_model(tmp_path)


def test_the_cpu_is_called_what_it_calls_itself(tmp_path: Path):
    assert cpu_model(a_machine(tmp_path, group="", mounts=[])) == "Fast CPU @ 3 GHz"


def test_a_quota_below_the_cores_is_what_can_be_used():
    assert Cores(num_installed=8, num_allowed=4, quota=2.5).num_usable == 2.5
    assert Cores(num_installed=8, num_allowed=4, quota=None).num_usable == 4
    assert Cores(num_installed=8, num_allowed=4, quota=6.0).num_usable == 4


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_a_process_held_to_one_core_sees_one():
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from dovetail.machine import cores; print(cores().num_allowed, cores().num_installed)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)

    assert done.stdout.split() == ["1", str(os.cpu_count())]


def test_the_room_of_a_folder_not_made_yet_is_that_of_the_disk_it_would_be_on(tmp_path: Path):
    stat = os.statvfs(tmp_path)
    folder = tmp_path / "not" / "yet"

    assert free_disk_bytes(folder) == pytest.approx(stat.f_bavail * stat.f_frsize, rel=0.05)
    assert is_writable(folder)
    assert not folder.exists()


def test_a_folder_inside_a_file_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")

    assert not is_writable(tmp_path / "file" / "folder")


def test_kernels_go_to_the_folder_that_numba_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Numba itself says where it keeps a kernel of a module, first with a folder chosen and then without.
    (tmp_path / "kernels.py").write_text("import numba\n\n@numba.njit(cache=True)\ndef one():\n    return 1\n")
    code = (
        "import importlib, numba, kernels; print(kernels.one.stats.cache_path);"
        "numba.config.CACHE_DIR = ''; print(importlib.reload(kernels).one.stats.cache_path)"
    )
    chosen = tmp_path / "chosen"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(chosen))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    with_choice, without = done.stdout.splitlines()

    assert kernel_cache_folders(tmp_path)[0] == chosen
    assert Path(with_choice).is_relative_to(chosen)
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    assert kernel_cache_folders(tmp_path)[0] == Path(without)


def test_packages_are_those_of_the_installed_distribution_with_their_extras():
    found = {package.name: package for package in packages()}

    assert found["torch"].extra == ""
    assert found["torch"].is_there
    assert found["optuna"].extra == "bayesian"


@pytest.mark.parametrize(
    ("bounds", "version", "is_there"),
    [
        (">=2.11,<2.14", "2.13.0+cpu", True),
        (">=2.11,<2.14", "2.9.1", False),
        (">=2.11,<2.14", "2.14.0", False),
        (">=4.5", None, False),
        ("", "0.1", True),
    ],
)
def test_a_package_is_there_if_its_version_is_within_the_bounds(bounds: str, version: str | None, is_there: bool):
    assert Package(name="some", bounds=bounds, extra="", version=version).is_there is is_there
