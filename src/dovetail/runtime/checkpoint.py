"""Checkpoints of a run: one folder each, whole or not there.

    checkpoints/step-0000000120/
      manifest.json            what was done, by whom, and a checksum of every file
      dense-0.safetensors      a slice of the dense parameters and their optimizer state, one file a server
      table-0/server-0/        the rows of a table on one server, as `dovetail table` reads them

A checkpoint is written under another name and renamed when all its files are on disk. It loads into any number of
servers.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import CHECKPOINTS

MANIFEST = "manifest.json"
PARTIAL = ".partial"
VALUES = "values"
Floats = NDArray[np.float32]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The manifest: where the run was, and what the files are."""

    step: int
    """Steps applied; in ssp and async, tasks."""
    position: int
    """Samples that count, over all epochs."""
    dense_steps: int
    num_servers: int
    """0 before the first step: tables are empty."""
    samples: int
    """Of one epoch."""
    files: dict[str, str] = {}

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Return the manifest in a checkpoint's folder."""
        try:
            return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise TrainingError(
                f"{folder} is no checkpoint of a run: {error}", hint="give a folder that has a manifest.json"
            ) from None

    def check_files(self, folder: Path) -> None:
        """Refuse a checkpoint with a file that is missing or not as it was written."""
        for name, checksum in self.files.items():
            path = folder / name
            if not path.is_file():
                raise TrainingError(f"{path} is missing", hint="resume from another checkpoint")
            if checksum_of(path) != checksum:
                raise TrainingError(f"{path} has a wrong checksum", hint="resume from another checkpoint")


def folder_of(run_folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step lies."""
    return run_folder / CHECKPOINTS / f"step-{step:010d}"


def table_folder(position: int, server: int) -> str:
    """Return where in a checkpoint a server's rows of a table lie."""
    return f"table-{position}/server-{server}"


def begin(run_folder: Path, step: int, generation: int = 0) -> Path:
    """Return an empty folder to write a checkpoint into, unlike any that a server may still write to."""
    for leftover in (run_folder / CHECKPOINTS).glob(f"*{PARTIAL}"):
        shutil.rmtree(leftover, ignore_errors=True)
    partial = folder_of(run_folder, step).with_suffix(f".{generation}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def publish(partial: Path, manifest: Manifest) -> Path:
    """Write the manifest and give the checkpoint its name."""
    path = partial / MANIFEST
    path.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    sync_file(path)
    for folder in {partial, *(entry.parent for entry in partial.rglob("*"))}:
        sync_file(folder)
    final = partial.with_name(partial.name.partition(".")[0])
    replaced = final.with_suffix(f".replaced{PARTIAL}")
    if final.exists():  # the same step, written before a restart
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    partial.rename(final)
    sync_file(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def all_in(run_folder: Path) -> list[Path]:
    """Return the whole checkpoints of a run, oldest first."""
    return sorted(
        path
        for path in (run_folder / CHECKPOINTS).glob("step-*")
        if path.suffix != PARTIAL and (path / MANIFEST).is_file()
    )


def newest(run_folder: Path) -> Path:
    """Return the newest checkpoint whose files are as they were written."""
    found = all_in(run_folder)
    for folder in reversed(found):
        try:
            Manifest.read(folder).check_files(folder)
        except TrainingError:
            continue
        return folder
    raise TrainingError(
        f"{run_folder} has no whole checkpoint" + (f", only {len(found)} damaged" if found else ""),
        hint="give the folder of a run, such as runs/ctr-dnn",
    )


def drop_old(run_folder: Path, newest: Path, keep: int) -> None:
    """Delete all but the `keep` checkpoints up to `newest`; later ones were damaged when the run went back."""
    known = [folder for folder in all_in(run_folder) if folder.name <= newest.name]
    for folder in known[:-keep]:
        shutil.rmtree(folder, ignore_errors=True)


def save_dense(folder: Path, server: int, offset: int, values: Floats, state: dict[str, Floats]) -> None:
    """Write a slice of the dense parameters that begins at `offset`."""
    path = folder / f"dense-{server}.safetensors"
    try:
        save_file({VALUES: values, **state}, path, metadata={"offset": str(offset)})
    except SafetensorError as error:
        raise TrainingError(f"{path} cannot be written: {error}", hint="check the disk") from None
    sync_file(path)


def load_dense(folder: Path, manifest: Manifest) -> tuple[Floats, dict[str, Floats]]:
    """Return all dense parameters and their optimizer state, joined from the slices."""
    slices = []
    for path in sorted(folder.glob("dense-*.safetensors")):
        if manifest.files and checksum_of(path) != manifest.files.get(path.name):
            raise TrainingError(f"{path} has a wrong checksum", hint="resume from another checkpoint")
        try:
            with safe_open(path, framework="numpy") as file:
                offset = int((file.metadata() or {})["offset"])
                slices.append((offset, {name: file.get_tensor(name) for name in file.keys()}))  # noqa: SIM118
        except (SafetensorError, KeyError, OSError) as error:
            raise TrainingError(f"{path} cannot be read: {error}", hint="resume from another checkpoint") from None
    slices.sort(key=lambda entry: (entry[0], len(entry[1][VALUES])))
    names = slices[0][1].keys() if slices else ()
    joined = {name: np.concatenate([part[name] for _, part in slices]) for name in names}
    return joined.pop(VALUES, np.zeros(0, dtype=np.float32)), joined


def checksum_of(path: Path) -> str:
    """Return a checksum of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums_in(folder: Path, *, only: str) -> dict[str, str]:
    """Return the checksums of the files in a folder whose path matches the pattern `only`."""
    return {str(path.relative_to(folder)): checksum_of(path) for path in sorted(folder.glob(only)) if path.is_file()}


def sync_file(path: Path) -> None:
    """Have a file or folder on disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
