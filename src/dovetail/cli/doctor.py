"""`dovetail doctor`: what this machine offers, and what is missing."""

from __future__ import annotations

import contextlib
import json
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from dovetail.cli.options import AsJson
from dovetail.cli.output import print_line, say
from dovetail.errors import DovetailError
from dovetail.version import __version__

if TYPE_CHECKING:
    from dovetail.machine import Cores

FEW_BYTES = 1 << 30
"""Less free memory or disk than this is worth a warning: one decoded data cache or a small model takes as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at: how it is, in words and in numbers, and the way out where it is not well."""

    name: str
    state: Literal["ok", "warning", "missing"]
    says: str
    hint: str = ""
    required: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_broken(self) -> bool:
        """Say whether Dovetail cannot work like this."""
        return self.required and self.state == "missing"


def doctor(
    as_json: AsJson = False,
) -> None:
    """Say what this machine offers and what is missing; exit 1 if something is broken that Dovetail needs."""
    findings = []
    for finding in _examine():
        findings.append(finding)
        if not as_json:
            _print(finding)
    broken = [finding for finding in findings if finding.is_broken]
    complaint = "; ".join(f"{finding.name}: {finding.says}" for finding in broken)
    hints = "; ".join(finding.hint for finding in broken)
    if as_json:
        failure = {"error": complaint, "hint": hints} if broken else {}
        print_line(json.dumps({"ok": not broken, "findings": [asdict(finding) for finding in findings]} | failure))
    if broken:
        say(f"error: {complaint}\n\nhint: {hints}")
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    colour = typer.colors.RED if finding.is_broken else None if finding.state == "ok" else typer.colors.YELLOW
    state = typer.style(f"{finding.state:<7}", fg=colour)
    hint = f" - hint: {finding.hint}" if finding.hint else ""
    typer.echo(f"{state}  {finding.name:<12}  {finding.says}{hint}")


def _examine() -> Iterator[Finding]:
    """Look at one thing after the other."""
    from dovetail.machine import cores, cpu_model

    usable = cores()
    yield Finding(name="python", state="ok", says=platform.python_version(), required=True)
    yield Finding(name="dovetail", state="ok", says=__version__, required=True)
    yield from _packages()
    yield Finding(name="cpu", state="ok", says=cpu_model())
    yield _cores(usable)
    yield _memory()
    torch = examine_torch(usable)
    yield torch
    if not torch.is_broken:
        yield from _cuda()
    yield from _disk()
    yield _kernel_cache()
    yield _catalogue()


def _packages() -> Iterator[Finding]:
    """Look for what Dovetail needs, and for what its extras need."""
    from importlib.metadata import PackageNotFoundError

    from dovetail.machine import Package, packages

    try:
        wanted = packages()
    except PackageNotFoundError:
        hint = "run: pip install -e . in its folder"
        yield Finding(name="packages", state="warning", says="Dovetail itself is not installed", hint=hint)
        return
    by_extra: dict[str, list[Package]] = {}
    for package in wanted:
        by_extra.setdefault(package.extra, []).append(package)
    for extra, members in by_extra.items():
        if extra in ("dev", "docs"):
            continue
        lacking = [
            f"{member.name}{member.bounds} ({member.version or 'none'} is installed)"
            for member in members
            if not member.is_there
        ]
        yield Finding(
            name=extra or "packages",
            state="missing" if lacking else "ok",
            says=f"needs {', '.join(lacking)}" if lacking else ", ".join(f"{m.name} {m.version}" for m in members),
            hint=f'pip install "dovetail[{extra}]"' if lacking and extra else "pip install dovetail" if lacking else "",
            required=not extra,
            facts={member.name: member.version for member in members},
        )


def _cores(cores: Cores) -> Finding:
    """Say how many cores there are for this process, and what holds it back."""
    held_back = [f"{cores.num_installed} installed"]
    if cores.num_allowed < cores.num_installed:
        held_back.append(f"{cores.num_allowed} allowed by affinity")
    if cores.quota is not None:
        held_back.append(f"a quota of {cores.quota:g}")
    return Finding(
        name="cores",
        state="ok",
        says=f"{cores.num_usable:g} usable ({', '.join(held_back)})",
        facts={**asdict(cores), "num_usable": cores.num_usable},
    )


def _memory() -> Finding:
    """Say how much memory there is, and how much of it is free for this process."""
    from dovetail.machine import memory

    has = memory()
    limit = f", limited to {_gib(has.usable_bytes)}" if has.usable_bytes < has.total_bytes else ""
    scarce = has.available_bytes < FEW_BYTES
    return Finding(
        name="memory",
        state="warning" if scarce else "ok",
        says=f"{_gib(has.available_bytes)} available of {_gib(has.total_bytes)}{limit}",
        hint="end other programs, or raise the limit of the container" if scarce else "",
        facts={**asdict(has), "usable_bytes": has.usable_bytes},
    )


def examine_torch(cores: Cores) -> Finding:
    """Import PyTorch and compare its threads with the cores."""
    try:
        import torch
    except Exception as error:  # a broken install fails in many ways
        says = f"cannot be imported: {type(error).__name__}: {error}".splitlines()[0]
        return Finding(
            name="torch", state="missing", says=says, hint="pip install --force-reinstall torch", required=True
        )
    threads = torch.get_num_threads()
    fitting = max(1, int(cores.num_usable))
    crowded = threads > fitting
    return Finding(
        name="torch",
        state="warning" if crowded else "ok",
        says=f"{torch.__version__}, {threads} threads",
        hint=f"more threads than cores slow it down: set OMP_NUM_THREADS={fitting}" if crowded else "",
        required=True,
        facts={"version": torch.__version__, "num_threads": threads, "cuda": torch.version.cuda},
    )


def _cuda() -> Iterator[Finding]:
    """Look at each CUDA device, or say why there is none."""
    from dovetail.machine import cuda_devices, why_no_cuda

    devices = cuda_devices()
    for device in devices:
        yield Finding(
            name=f"cuda:{device.index}",
            state="warning" if device.broken else "ok",
            says=f"{device.name}, {_gib(device.memory_bytes)}, compute capability {device.compute_capability}"
            + (f": {device.broken}" if device.broken else ""),
            hint="install a PyTorch built for this device: https://pytorch.org/get-started" if device.broken else "",
            facts=asdict(device),
        )
    if not devices:
        why = why_no_cuda()
        yield Finding(
            name="cuda",
            state="warning" if why else "missing",
            says=why or "no NVIDIA driver, so no CUDA device: layers are measured and trained on the CPU",
            hint="with an NVIDIA GPU, install its driver and a CUDA build: https://pytorch.org/get-started",
        )


def _disk() -> Iterator[Finding]:
    """Say how much room there is for temporary files and for the cache of decoded data."""
    from dovetail.machine import free_disk_bytes, is_writable

    folders: dict[str, Path] = {}
    try:
        folders["temporary"] = Path(tempfile.gettempdir())
    except OSError as error:
        says = f"no folder can be written: {error.strerror}"
        hint = "set TMPDIR to a folder that you can write to"
        yield Finding(name="temporary", state="missing", says=says, hint=hint, required=True)
    with contextlib.suppress(ImportError, OSError, RuntimeError):  # no such cache without torch, or without a home
        from dovetail.data.cache import default_folder

        folders["data cache"] = default_folder()
    for name, folder in folders.items():
        variable = "TMPDIR" if name == "temporary" else "XDG_CACHE_HOME"
        free_bytes = free_disk_bytes(folder)
        writable = is_writable(folder)
        well = writable and free_bytes >= FEW_BYTES
        yield Finding(
            name=name,
            state="ok" if well else "warning",
            says=f"{_gib(free_bytes)} free at {folder}" + ("" if writable else ", which cannot be written"),
            hint="" if well else f"free some, or set {variable} to a folder with more room that you can write to",
            facts={"folder": str(folder), "free_bytes": free_bytes, "writable": writable},
        )


def _kernel_cache() -> Finding:
    """Say where compiled kernels are kept, which must be somewhere."""
    import dovetail
    from dovetail.machine import is_writable, kernel_cache_folders

    folders = kernel_cache_folders(Path(dovetail.__file__).parent / "planner")
    writable = [folder for folder in folders if is_writable(folder)]
    hint = "set NUMBA_CACHE_DIR to a folder that you can write to"
    if not writable:
        says = f"none of {', '.join(map(str, folders))} can be written, so no kernel can be compiled"
        return Finding(name="kernel cache", state="missing", says=says, hint=hint, required=True)
    taken = writable[0]
    refused = "" if taken == folders[0] else f" ({folders[0]} cannot be written)"
    return Finding(
        name="kernel cache",
        state="warning" if refused else "ok",
        says=f"compiled once, kept in {taken}{refused}",
        hint=hint if refused else "",
        required=True,
        facts={"folder": str(taken)},
    )


def _catalogue() -> Finding:
    """Load the catalogue, with the user's own files."""
    try:
        from dovetail.catalogue import users_catalogue

        types = users_catalogue()
    except DovetailError as error:
        return Finding(name="catalogue", state="missing", says=str(error), hint=error.hint, required=True)
    except ImportError as error:
        return Finding(name="catalogue", state="missing", says=str(error), hint="pip install dovetail", required=True)
    return Finding(name="catalogue", state="ok", says=f"{len(types)} types", facts={"num_types": len(types)})


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / (1 << 30):,.1f} GiB"
