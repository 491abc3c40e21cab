"""What this machine offers: cores, memory, disk, CUDA devices and installed packages, as a process really gets them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROC = Path("/proc")
NO_LIMIT_BYTES = 1 << 60
"""From here on a limit of a control group is none: version 1 writes the largest number it can."""

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?(?P<bounds>[^;]*)(?:;.*extra == ['\"](?P<extra>[^'\"]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """The cores that this process may use, and what holds it to them."""

    num_installed: int
    num_allowed: int
    quota: float | None

    @property
    def num_usable(self) -> float:
        """Return the cores' worth of time to be had: a quota may be a fraction."""
        return min(float(self.num_allowed), self.quota or float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The machine's memory, and what a control group leaves of it."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None

    @property
    def usable_bytes(self) -> int:
        """Return the memory this process could ever have."""
        return min(self.total_bytes, self.limit_bytes or self.total_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDevice:
    """A CUDA device; `broken` says why nothing runs on it, where that is so."""

    index: int
    name: str
    memory_bytes: int
    compute_capability: str
    broken: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that Dovetail asks for: `extra` is the part of Dovetail that does, or empty for all of it."""

    name: str
    bounds: str
    extra: str
    version: str | None

    @property
    def is_there(self) -> bool:
        """Say whether it is installed, in a version within the bounds."""
        return self.version is not None and all(
            _holds(self.version, bound) for bound in self.bounds.split(",") if bound
        )


def cpu_model(proc: Path = PROC) -> str:
    """Return what the CPU calls itself, or its architecture."""
    for line in _read(proc / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def cores(proc: Path = PROC) -> Cores:
    """Return the cores of this process: installed, allowed by affinity, and the quota of its control groups."""
    num_installed = os.cpu_count() or 1
    num_allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else num_installed
    quotas = [quota for folder in _group_folders("cpu", proc) if (quota := _quota(folder)) is not None]
    return Cores(num_installed=num_installed, num_allowed=num_allowed, quota=min(quotas, default=None))


def memory(proc: Path = PROC) -> Memory:
    """Return the memory of this machine and what the control groups of this process allow of it."""
    kibibytes = {
        key: int(value.split()[0])
        for key, _, value in (line.partition(":") for line in _read(proc / "meminfo").splitlines())
        if value.strip()
    }
    total = kibibytes.get("MemTotal", 0) * 1024 or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = kibibytes.get("MemAvailable", kibibytes.get("MemFree", total // 1024)) * 1024
    limits = []
    for folder in _group_folders("memory", proc):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        if limit is not None and limit < NO_LIMIT_BYTES:
            limits.append(limit)
            available = min(available, max(0, limit - _held_bytes(folder)))
    return Memory(total_bytes=total, available_bytes=available, limit_bytes=min(limits, default=None))


def free_disk_bytes(folder: Path) -> int:
    """Return the bytes free for this user where a folder is, or would be."""
    return shutil.disk_usage(_nearest(folder)).free


def is_writable(folder: Path) -> bool:
    """Say whether files can be written to a folder, by writing one; of a folder not made yet, to where it would be."""
    try:
        tempfile.TemporaryFile(dir=_nearest(folder)).close()
    except OSError:
        return False
    return True


def kernel_cache_folders(package: Path) -> list[Path]:
    """Return where Numba may keep the compiled kernels of a package; it takes the first of these that it can write."""
    chosen = os.environ.get("NUMBA_CACHE_DIR", "")
    folders = [Path(chosen)] if chosen else []
    folders.append(package / "__pycache__")
    with contextlib.suppress(RuntimeError):  # a user without a home
        folders.append(Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache") / "numba")
    return folders


def cuda_devices() -> tuple[CudaDevice, ...]:
    """Return the CUDA devices that PyTorch sees, each tried once."""
    import torch  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not torch.cuda.is_available():
            return ()
        return tuple(_cuda_device(index) for index in range(torch.cuda.device_count()))


def why_no_cuda(proc: Path = PROC) -> str:
    """Say why PyTorch sees no CUDA device; empty where there is no NVIDIA driver either, so none is to be expected."""
    import torch  # noqa: PLC0415

    if not (proc / "driver" / "nvidia" / "version").exists():
        return ""
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every device"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.is_available()
    return str(said[0].message).splitlines()[0] if said else "PyTorch finds none, though there is an NVIDIA driver"


def packages(distribution: str = "dovetail") -> list[Package]:
    """Return every package that an installed distribution asks for, optional ones too."""
    found = []
    for requirement in importlib.metadata.requires(distribution) or []:
        match = _REQUIREMENT.match(requirement)
        if match and match["name"] != distribution:
            found.append(
                Package(
                    name=match["name"],
                    bounds=match["bounds"].replace(" ", "").strip("()"),
                    extra=match["extra"] or "",
                    version=_installed(match["name"]),
                )
            )
    return found


def _cuda_device(index: int) -> CudaDevice:
    """Return one device, after adding two numbers on it."""
    import torch  # noqa: PLC0415

    properties = torch.cuda.get_device_properties(index)
    broken = ""
    try:
        (torch.ones(1, device=f"cuda:{index}") + 1).item()
    except RuntimeError as error:
        broken = str(error).splitlines()[0]
    return CudaDevice(
        index=index,
        name=properties.name,
        memory_bytes=properties.total_memory,
        compute_capability=f"{properties.major}.{properties.minor}",
        broken=broken,
    )


def _group_folders(controller: str, proc: Path) -> Iterator[Path]:
    """Yield the folders of this process's control group and those above it, where a controller's limits stand.

    `/proc/self/cgroup` names the group as the hierarchy has it, `/proc/self/mountinfo` where that hierarchy, or a part
    of it, is mounted. A group inside the mounted part is below the mount point; any other is shown as the mount point.
    """
    groups = [line.split(":", 2) for line in _read(proc / "self" / "cgroup").splitlines() if line.count(":") >= 2]
    for line in _read(proc / "self" / "mountinfo").splitlines():
        mounted, _, filesystem = line.partition(" - ")
        fields, kinds = mounted.split(), filesystem.split()
        if len(fields) < 5 or len(kinds) < 3 or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        if kinds[0] == "cgroup" and controller not in kinds[2].split(","):
            continue
        for _, controllers, group in groups:
            if controller in controllers.split(",") if kinds[0] == "cgroup" else not controllers:
                yield from _upwards(Path(fields[4]), PurePosixPath(fields[3]), PurePosixPath(group))


def _upwards(mount: Path, root: PurePosixPath, group: PurePosixPath) -> Iterator[Path]:
    """Yield the folder of a group, and each above it up to the mount point."""
    below = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
    if ".." in below.parts:
        below = PurePosixPath()
    folder = mount / below
    while folder != mount:
        yield folder
        folder = folder.parent
    yield mount


def _quota(folder: Path) -> float | None:
    """Return how many cores' worth of time a control group may use, or None for any."""
    quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _held_bytes(folder: Path) -> int:
    """Return the memory that a control group holds and cannot simply drop: all but cached files not used lately."""
    held = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
    counters = dict(line.split(" ", 1) for line in _read(folder / "memory.stat").splitlines() if " " in line)
    return held - int(counters.get("total_inactive_file", counters.get("inactive_file", 0)))


def _number(path: Path) -> int | None:
    """Return the whole number in a file, or None where there is none."""
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _nearest(folder: Path) -> Path:
    """Return a folder, or the nearest above it that is there."""
    for place in (folder, *folder.absolute().parents):
        with contextlib.suppress(OSError):  # what may not be looked at is as good as not there
            place.stat()
            return place
    return Path.cwd()


def _read(path: Path) -> str:
    """Return the text of a file of the system, or none where this system has no such file."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _installed(name: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _holds(version: str, bound: str) -> bool:
    """Say whether a version meets `>=2.11` or `<2.14`; other kinds of bound are taken as met."""
    have, want = _release(version), _release(bound.lstrip("<>="))
    if bound.startswith(">="):
        return have >= want
    return have < want if bound.startswith("<") and not bound.startswith("<=") else True


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: (2, 13, 0) for 2.13.0+cpu."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
