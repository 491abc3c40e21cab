"""Checkpoints of a run: one folder each, whole or not there.

    checkpoints/step-0000000120/
      manifest.json            what was done, what by, a checksum of every file and one of itself
      dense-0.safetensors      a slice of the dense parameters and their optimizer state, one file a server
      statistics.safetensors   running means and variances, averaged over the workers, where the model has any
      table-0/server-0/        the rows of a table on one server, as `dovetail table` reads them

A checkpoint is written under another name and renamed when all its files are on disk. It loads into any number of
servers. The manifest is the root: what it does not list is not read, and what it lists is as it was written or the
checkpoint is passed over. Where a run goes on that differs from what made a checkpoint, `fingerprint` says what may.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save, save_file

from dovetail.atomic_file import replace_file, sync
from dovetail.encryption import (
    check_same_key,
    decoded,
    encoded,
    is_encrypted,
    key_for,
    key_id_of,
    read_file,
)
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.fingerprint import Fingerprint, FingerprintDifference, Matter
from dovetail.runtime.folder import CHECKPOINTS
from dovetail.runtime.sealed import PROOF, read_sealed, write_sealed
from dovetail.runtime.spending import Spending
from dovetail.spec.run_sections import RunSaving, RunValidation


class CheckpointSchedule:
    """Looks from checkpoint to checkpoint; time is an argument."""

    def __init__(self, settings: RunSaving, validation: RunValidation | None, samples: int) -> None:
        """Look at an epoch of so many samples; what is tried on `validation` is kept."""
        self._settings, self._samples = settings, samples
        self._validation = validation if validation is not None and validation.is_wanted else None
        self._last_step, self._last_position = 0, 0
        self._last_s: float | None = None

    def is_due(self, step: int, position: int, now_s: float) -> bool:
        """Say whether one is; the first look says where the run begins."""
        if self._last_s is None:
            self.begun(step, position, now_s)
            return False
        if self._validation is not None:
            steps, epochs = self._validation.every_steps, self._validation.epochs
            if steps is not None and step // steps > self._last_step // steps:
                return True
            done, before = position // self._samples, self._last_position // self._samples
            if epochs is not None and done // epochs > before // epochs:
                return True
        every, every_s = self._settings.every_steps, self._settings.every_s
        return (every is not None and step - self._last_step >= every) or (
            every_s is not None and now_s - self._last_s >= every_s
        )

    def begun(self, step: int, position: int, now_s: float) -> None:
        """Count from here: a checkpoint of this step was begun."""
        self._last_step, self._last_position, self._last_s = step, position, now_s

    def restart(self) -> None:
        """Count from the next look on: the run went back."""
        self._last_s = None


MANIFEST = "manifest.json"
PARTIAL = ".partial"
VALUES = "values"
RESIDUAL = "residual"
"""What workers kept back of gradients that travel in fewer bits; added to the next step."""
STATISTICS = "statistics.safetensors"
TABLE_MANIFEST = re.compile(r"table-([0-9]+)/server-([0-9]+)/[0-9]{6}-(full|delta)/manifest\.json")
OTHER = "resume from another checkpoint"
Floats = NDArray[np.float32]


class RunManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    fingerprint: Fingerprint | None = None
    """What made it; there is one in every file."""
    spending: Spending | None = None
    """What the steps up to here have spent, where the run is private."""

    @classmethod
    def read(cls, folder: Path) -> RunManifest:
        """Return the manifest in a checkpoint's folder."""
        if not (folder / MANIFEST).is_file():
            raise TrainingError(f"{folder} is no checkpoint of a run", hint="give a folder that has a manifest.json")
        manifest = read_sealed(folder / MANIFEST, cls, hint=OTHER, proven=True)
        if folder.parent.name == CHECKPOINTS and folder.name != folder_of(Path(), manifest.step).name:
            raise TrainingError(f"{folder} is of step {manifest.step}, not of its name", hint=OTHER)
        return manifest

    def write(self, folder: Path) -> None:
        """Write it into a checkpoint's folder."""
        write_sealed(folder / MANIFEST, self, proven=True)

    @property
    def is_between_epochs(self) -> bool:
        """Say whether no epoch is under way."""
        return self.position % self.samples == 0

    def in_epochs_of(self, samples: int) -> RunManifest:
        """Return it as a run with so many samples an epoch has it: at the end of an epoch, as many epochs are done."""
        if samples == self.samples or not self.is_between_epochs:
            return self
        return msgspec.structs.replace(self, position=self.position // self.samples * samples, samples=samples)

    def check_files(self, folder: Path) -> None:
        """Refuse a checkpoint with a file that is missing or not as it was written."""
        self._check_whole(folder)
        for name, checksum in self.files.items():
            path = folder / name
            if not path.is_file():
                raise TrainingError(f"{path} is missing", hint=OTHER)
            if checksum_of(path) != checksum:
                raise TrainingError(f"{path} has a wrong checksum", hint=OTHER)

    def _check_whole(self, folder: Path) -> None:
        """Refuse a list of files that leaves out parameters."""
        if self.fingerprint is None:
            raise TrainingError(f"{folder} does not say what made it", hint=OTHER)
        if not self.dense_files and self.fingerprint.model.dense:
            raise TrainingError(f"{folder} lists no dense parameters", hint=OTHER)
        listed = {match.group(1, 2) for match in map(TABLE_MANIFEST.fullmatch, self.files) if match}
        for position, table in enumerate(self.fingerprint.model.tables):
            for server in range(self.num_servers):
                if (str(position), str(server)) not in listed:
                    raise TrainingError(
                        f"{folder} lists no rows of table `{table.name}` of server {server}", hint=OTHER
                    )

    @property
    def dense_files(self) -> list[str]:
        """Return the names of the files with dense parameters."""
        return sorted(name for name in self.files if re.fullmatch(r"dense-[0-9]+\.safetensors", name))

    def table_at(self, folder: Path, position: int, server: int) -> Path:
        """Return where the rows of a table on a server lie: the newest that is listed, not that which is there."""
        prefix = table_folder(position, server) + "/"
        found = sorted(name for name in self.files if name.startswith(prefix) and TABLE_MANIFEST.fullmatch(name))
        if not found:
            raise TrainingError(f"{folder} lists no rows in {prefix}", hint=OTHER)
        path = folder / found[-1]
        if not path.is_file() or checksum_of(path) != self.files[found[-1]]:
            raise TrainingError(f"{path} is missing, or has a wrong checksum", hint=OTHER)
        return path.parent

    def tables_in(self, folder: Path) -> list[Path]:
        """Return where all rows lie, those of one server after those of another."""
        numbers = sorted(match.group(1, 2) for match in map(TABLE_MANIFEST.fullmatch, self.files) if match)
        return [self.table_at(folder, int(table), int(server)) for table, server in numbers]

    def check_fits(self, folder: Path, now: Fingerprint) -> list[FingerprintDifference]:
        """Refuse to go on from here where that would train wrong; return what differs and does no harm."""
        if self.fingerprint is None:
            raise TrainingError(f"{folder} does not say what made it", hint=OTHER)
        differences = self.fingerprint.differences(now)
        for difference in differences:
            if difference.matter is Matter.NEVER:
                raise TrainingError(
                    f"{folder} is of another run: {difference}",
                    hint="go on with the model, data and optimizers that it began with, or start a new run",
                )
            if difference.matter is Matter.AT_THE_END and not self.is_between_epochs:
                raise TrainingError(
                    f"{folder} is in the middle of an epoch, and {difference}: samples would count twice or never",
                    hint="go on as it began until the epoch is over, and change it then",
                )
        return differences


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
    partial = partial_of(run_folder, step, generation)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def partial_of(run_folder: Path, step: int, generation: int = 0) -> Path:
    """Return the folder that the checkpoint of a step is written into before it is whole."""
    return folder_of(run_folder, step).with_suffix(f".{generation}{PARTIAL}")


def publish(partial: Path, manifest: RunManifest) -> Path:
    """Write the manifest and give the checkpoint its name."""
    manifest.write(partial)
    for folder in {partial, *(entry.parent for entry in partial.rglob("*"))}:
        sync(folder)
    final = partial.with_name(partial.name.partition(".")[0])
    replaced = final.with_suffix(f".replaced{PARTIAL}")
    if final.exists():  # the same step, written before a restart
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    partial.rename(final)
    sync(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def all_in(run_folder: Path) -> list[Path]:
    """Return the whole checkpoints of a run, oldest first."""
    return sorted(
        path
        for path in (run_folder / CHECKPOINTS).glob("step-*")
        if path.suffix != PARTIAL and (path / MANIFEST).is_file()
    )


def newest(run_folder: Path, *, fits: Fingerprint | None = None, tell: Callable[[str], None] = lambda _: None) -> Path:
    """Return the newest checkpoint whose files are as they were written; with `fits`, one that a run can go on from.

    `tell` hears why others are passed over.
    """
    found = all_in(run_folder)
    for folder in reversed(found):
        try:
            manifest = RunManifest.read(folder)
            if fits is not None:
                manifest.check_fits(folder, fits)
            manifest.check_files(folder)
        except (TrainingError, OSError) as error:
            tell(f"{folder.name} is passed over: {error}")
        else:
            return folder
    raise TrainingError(
        f"{run_folder} has no whole checkpoint" + (f", only {len(found)} damaged" if found else ""),
        hint="give the folder of a run, such as runs/ctr-dnn",
    )


def check_key(run_folder: Path) -> None:
    """Refuse a run that is kept encrypted without its key, and one that is not with a key."""
    for folder in reversed(all_in(run_folder)):
        try:
            proof = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=dict[str, Any]).get(PROOF)
        except (OSError, msgspec.MsgspecError):
            continue  # damaged: whoever looks for the newest says so
        key, found = key_for(folder), None if proof is None else key_id_of(proof)
        if key is not None or found is not None:
            check_same_key(folder / MANIFEST, key, found)
        return


def drop_old(run_folder: Path, newest: Path, keep: int) -> None:
    """Delete all but the `keep` checkpoints up to `newest`; later ones were damaged when the run went back."""
    known = [folder for folder in all_in(run_folder) if folder.name <= newest.name]
    for folder in known[:-keep]:
        shutil.rmtree(folder, ignore_errors=True)


def save_dense(folder: Path, server: int, offset: int, values: Floats, state: dict[str, Floats]) -> None:
    """Write a slice of the dense parameters that begins at `offset`."""
    path = folder / f"dense-{server}.safetensors"
    save_tensors(path, {VALUES: values, **state}, {"offset": str(offset)})


def save_tensors(path: Path, tensors: dict[str, NDArray[Any]], facts: dict[str, str]) -> None:
    """Write arrays as safetensors; the file is on disk when this returns."""
    try:
        if key_for(path) is None:
            save_file(tensors, path, metadata=facts)
        else:
            path.write_bytes(encoded(path, save(tensors, metadata=facts)))
    except (SafetensorError, OSError) as error:
        raise TrainingError(f"{path} cannot be written: {error}", hint="check the disk") from None
    sync(path)


def load_dense(folder: Path, manifest: RunManifest) -> tuple[Floats, dict[str, Floats]]:
    """Return all dense parameters and their optimizer state."""
    values, state = load_vectors(folder, manifest)
    state.pop(RESIDUAL, None)
    return values, state


def load_vectors(folder: Path, manifest: RunManifest) -> tuple[Floats, dict[str, Floats]]:
    """Return all dense parameters and what is kept beside them, joined from the slices that the manifest lists."""
    slices = [_read_slice(folder / name, manifest.files[name]) for name in manifest.dense_files]
    slices.sort(key=lambda entry: (entry[0], len(entry[1][VALUES])))
    end = 0
    for offset, part in slices:
        if offset != end or any(vector.shape != part[VALUES].shape for vector in part.values()):
            raise TrainingError(f"{folder} has no dense parameters from {end} to {offset}", hint=OTHER)
        end += len(part[VALUES])
    if manifest.fingerprint is not None and end != sum(entry.size for entry in manifest.fingerprint.model.dense):
        raise TrainingError(f"{folder} has {end} dense parameters, not as many as its model", hint=OTHER)
    names = slices[0][1].keys() if slices else ()
    if any(part.keys() != names for _, part in slices):
        raise TrainingError(f"{folder} has slices of dense parameters with unlike state", hint=OTHER)
    joined = {name: np.concatenate([part[name] for _, part in slices]) for name in names}
    return joined.pop(VALUES, np.zeros(0, dtype=np.float32)), joined


def write_statistics(values: Floats, folder: Path) -> None:
    """Write running means and variances, where there are any, into a checkpoint's folder."""
    if len(values):
        path = folder / STATISTICS
        replace_file(path, encoded(path, save({VALUES: values})), durable=True)


def read_statistics(folder: Path, manifest: RunManifest) -> Floats | None:
    """Return the running means and variances of a checkpoint, or None where the manifest lists none."""
    if STATISTICS not in manifest.files:
        return None
    path = folder / STATISTICS
    try:
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != manifest.files[STATISTICS]:
            raise ValueError("it has a wrong checksum")
        return np.asarray(load(decoded(path, data))[VALUES], dtype=np.float32)
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise TrainingError(f"{path} cannot be read: {error}", hint=OTHER) from None


def _read_slice(path: Path, checksum: str) -> tuple[int, dict[str, Floats]]:
    """Return where a slice of the dense parameters begins, and its vectors."""
    try:
        if checksum_of(path) != checksum:
            raise ValueError("it has a wrong checksum")
        vectors, facts = load_tensors(path)
        offset = int(facts["offset"])
        if VALUES not in vectors:
            raise ValueError("it has no values")
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise TrainingError(f"{path} cannot be read: {error}", hint=OTHER) from None
    return offset, vectors


def load_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays of a file of safetensors, and what it says of them."""
    if key_for(path) is None and not is_encrypted(path):
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    data = read_file(path)
    (length,) = struct.unpack_from("<Q", data)
    header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, Any])
    return load(data), header.get("__metadata__", {})


HASHERS = 4
"""Threads that read files for their checksums."""


def checksum_of(path: Path) -> str:
    """Return a checksum of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums_in(folder: Path, *, only: str) -> dict[str, str]:
    """Return the checksums of the files in a folder whose path matches the pattern `only`; several are read at once."""
    files = [path for path in sorted(folder.glob(only)) if path.is_file()]
    names = [str(path.relative_to(folder)) for path in files]
    with ThreadPoolExecutor(min(HASHERS, os.cpu_count() or 1)) as hashers:
        return dict(zip(names, hashers.map(checksum_of, files), strict=True))
