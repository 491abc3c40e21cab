"""CPU quotas and memory limits, on processes that are really held to them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.cgroups import CpuQuota, LimitError, Place, find_place
from testbed import MemoryLimit
from tests.testbed.makers import begin, line_of, needs_memory, needs_quota, python

BUSY = """
import time
while input() == "":
    end = time.monotonic() + 1.0
    start = time.process_time()
    while time.monotonic() < end:
        pass
    print(time.process_time() - start)
"""
START_ANOTHER = f"""
import subprocess, sys
input()
subprocess.run([sys.executable, "-u", "-c", {BUSY!r}], input="\\n.\\n", text=True, check=True)
"""
TAKE = "input(); held = bytearray(int(__import__('sys').argv[1])); print(len(held))"
LEAVE_BEHIND = """
import os
from dovetail.cgroups import CpuQuota
quota = CpuQuota("orphan", 0.5).__enter__()
quota.add(os.getpid())
print(quota.path if quota.path.is_dir() else "", flush=True)
os._exit(1)
"""


def busy_s(process: subprocess.Popen[str]) -> float:
    """Return the processor time that a busy process gets in a second."""
    begin(process)
    return float(line_of(process))


@pytest.mark.alone
@needs_quota
def test_a_fifth_of_a_core_is_a_fifth_of_a_second_each_second() -> None:
    with CpuQuota("slow", 0.2) as quota, python(BUSY) as process:
        quota.add(process.pid)

        assert 0.05 < busy_s(process) < 0.3


@pytest.mark.alone
@needs_quota
def test_a_quota_follows_a_change_in_mid_run() -> None:
    with CpuQuota("slow", 0.1) as quota, python(BUSY) as process:
        quota.add(process.pid)
        before = busy_s(process)
        quota.change(0.4)

        assert busy_s(process) > 1.5 * before


@pytest.mark.alone
@needs_quota
def test_what_a_process_starts_is_under_its_quota() -> None:
    with CpuQuota("slow", 0.2) as quota, python(START_ANOTHER) as process:
        quota.add(process.pid)
        begin(process)
        used = float(line_of(process))

        assert 0.05 < used < 0.3


@needs_quota
def test_a_group_goes_away_while_its_process_runs_on() -> None:
    with python(BUSY) as process:
        with CpuQuota("slow", 0.1) as quota:
            quota.add(process.pid)
            path = quota.path
            assert str(process.pid) in (path / "cgroup.procs").read_text().split()

        assert not path.exists()
        assert str(process.pid) in (quota.place.home / "cgroup.procs").read_text().split()
        assert process.poll() is None


@needs_quota
def test_a_group_goes_away_after_an_error() -> None:
    with pytest.raises(KeyError), CpuQuota("slow", 0.1) as quota:
        raise KeyError

    assert not quota.path.exists()


@needs_quota
def test_what_a_dead_process_left_is_swept_at_the_next_start() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVE_BEHIND], capture_output=True, text=True, timeout=100, check=False
    )
    left = Path(done.stdout.strip())
    assert left.is_absolute()  # it was there; by now another test may have swept it

    with CpuQuota("next", 0.5):
        assert not left.exists()


@needs_quota
def test_a_process_that_is_gone_cannot_be_added() -> None:
    with python("") as process:
        process.wait(timeout=100)

        with CpuQuota("slow", 0.1) as quota, pytest.raises(LimitError, match=f"no process {process.pid}"):
            quota.add(process.pid)


def test_a_quota_below_a_millisecond_a_period_is_refused_with_the_period_it_needs() -> None:
    with pytest.raises(LimitError, match=r"0\.05 cores are 500 us") as raised:
        CpuQuota("tiny", 0.05)

    assert "period_ms` to 20" in raised.value.hint
    with pytest.raises(LimitError, match="0 cores"):
        CpuQuota("none", 0)


def test_a_group_is_not_there_before_its_block() -> None:
    with pytest.raises(LimitError, match="not there yet"):
        CpuQuota("early", 1).add(os.getpid())


@needs_memory
def test_a_process_that_needs_more_than_its_limit_is_killed() -> None:
    with MemoryLimit("small", 50_000_000) as limit, python(TAKE, 200_000_000) as process:
        limit.add(process.pid)
        begin(process)

        assert process.wait(timeout=100) == -signal.SIGKILL


@needs_memory
def test_a_raised_limit_is_enough() -> None:
    with MemoryLimit("small", 50_000_000) as limit, python(TAKE, 200_000_000) as process:
        limit.change(400_000_000)
        limit.add(process.pid)
        begin(process)

        assert line_of(process) == "200000000"


def fake_proc(folder: Path, *, mounts: str, cgroup: str) -> Path:
    """Return a folder that stands in for /proc/self."""
    (folder / "mounts").write_text(mounts)
    (folder / "cgroup").write_text(cgroup)
    return folder


def refuse_writes(group: Path) -> None:
    """Let a group of a made-up hierarchy hand on nothing and take nothing, as one with processes in it does."""
    (group / "cgroup.subtree_control").symlink_to(group / "nowhere" / "file")


def version_2(folder: Path) -> tuple[Path, Path, Path]:
    """Return top, own group and stand-in for /proc/self of a made-up hierarchy of version 2."""
    top = folder / "top"
    own = top / "user" / "shell"
    own.mkdir(parents=True)
    (top / "cgroup.controllers").write_text("cpuset cpu memory\n")
    proc = fake_proc(folder, mounts=f"none {top} cgroup2 rw,relatime 0 0\n", cgroup="0::/user/shell\n")
    return top, own, proc


def test_a_version_2_group_goes_below_the_nearest_that_hands_the_controller_on(tmp_path: Path) -> None:
    top, own, proc = version_2(tmp_path)
    (top / "cgroup.subtree_control").write_text("cpu memory\n")
    refuse_writes(top / "user")
    refuse_writes(own)

    place = find_place("cpu", proc=proc)

    assert (place.version, place.parent, place.home) == (2, top, own)


def test_where_no_version_2_group_hands_the_controller_on_the_error_says_so(tmp_path: Path) -> None:
    top, own, proc = version_2(tmp_path)
    for group in (top, top / "user", own):
        refuse_writes(group)

    with pytest.raises(LimitError, match="hands the `cpu` controller on"):
        find_place("cpu", proc=proc)


def test_in_version_2_a_quota_is_one_line(tmp_path: Path) -> None:
    quota = CpuQuota("slow", 0.4)
    quota._place = Place(version=2, parent=tmp_path, home=tmp_path)
    quota.path.mkdir()
    quota.apply()

    assert (quota.path / "cpu.max").read_text() == "4000 10000"


def test_a_version_1_group_goes_below_the_one_this_process_is_in(tmp_path: Path) -> None:
    own = tmp_path / "memory" / "box"
    own.mkdir(parents=True)
    mounts = f"none {tmp_path}/cpu cgroup rw,cpu,cpuacct 0 0\nnone {tmp_path}/memory cgroup rw,memory 0 0\n"
    proc = fake_proc(tmp_path, mounts=mounts, cgroup="3:memory:/box\n2:cpu,cpuacct:/not/seen/here\n")

    assert find_place("memory", proc=proc).parent == own
    assert find_place("cpu", proc=proc).parent == tmp_path / "cpu"


def test_where_no_cgroups_are_mounted_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="no cgroup file system here has the `cpu` controller"):
        find_place("cpu", proc=tmp_path)
