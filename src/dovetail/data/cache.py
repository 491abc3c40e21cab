"""Decoded data on local disk, up to a size: what was not used for longest goes first."""

from __future__ import annotations

import contextlib
import os
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dovetail.atomic_file import replace_file, replacing
from dovetail.data.batch import FIELDS, Batch
from dovetail.data.errors import DataError

EXTRA = "field:"
"""What the names of further fields begin with."""
DEFAULT_LIMIT_BYTES = 20 << 30


def default_folder() -> Path:
    """Return where decoded data are kept unless someone says otherwise: $XDG_CACHE_HOME/dovetail/data."""
    return Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache") / "dovetail" / "data"


class DecodedCache:
    """Batches by key, one file each. Several processes may share the folder: files appear whole or not at all."""

    def __init__(self, folder: str | Path | None = None, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()
        self.limit_bytes = limit_bytes
        self.hits = self.misses = 0
        self._lock = threading.Lock()
        if limit_bytes < 0:
            raise DataError(f"the cache may take {limit_bytes} bytes", hint="set its limit to 0 or more")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise DataError(
                f"the cache folder `{self.folder}` cannot be made: {problem.strerror}", hint="name another with cache="
            ) from None

    def __getstate__(self) -> dict[str, object]:
        """Leave out the lock: another process has its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Take a new lock."""
        self.__dict__.update(state, _lock=threading.Lock())

    def get(self, key: str) -> Batch | None:
        """Return the batch kept under `key`, or None; a damaged one is removed and counts as a miss."""
        path = self._path(key)
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                batch = Batch(
                    **{name: torch.from_numpy(arrays[name]) for name in FIELDS if name in arrays},
                    extra={
                        name.removeprefix(EXTRA): torch.from_numpy(arrays[name])
                        for name in arrays.files
                        if name.startswith(EXTRA)
                    },
                )
            os.utime(path)
        except FileNotFoundError:
            self.misses += 1
            return None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, DataError):
            path.unlink(missing_ok=True)
            self.misses += 1
            return None
        self.hits += 1
        return batch

    def put(self, key: str, batch: Batch) -> None:
        """Keep a batch, and make room for it; what neither limit nor disk has room for is not kept."""
        if batch.num_bytes > self.limit_bytes:
            return
        path = self._path(key)
        try:
            with replacing(path) as stream:
                arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in batch.present().items()}
                arrays |= {f"{EXTRA}{name}": tensor.numpy() for name, tensor in batch.extra.items()}
                np.savez(stream, **arrays)
        except OSError:
            return
        self._make_room()

    def get_text(self, key: str) -> str | None:
        """Return a note kept under `key`, or None."""
        try:
            return self._note_path(key).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def put_text(self, key: str, text: str) -> None:
        """Keep a note; notes are small and do not count towards the limit."""
        with contextlib.suppress(OSError):
            replace_file(self._note_path(key), text.encode())

    def num_bytes(self) -> int:
        """Return what all batches take on disk."""
        return sum(size for _, size, _ in self._entries())

    def _make_room(self) -> None:
        """Remove batches, longest unused first, until all fit the limit."""
        with self._lock:
            entries = sorted(self._entries())
            excess = sum(size for _, size, _ in entries) - self.limit_bytes
            for _, size, path in entries:
                if excess <= 0:
                    return
                path.unlink(missing_ok=True)
                excess -= size

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Return (last use, bytes, path) of every batch."""
        found = []
        for path in self.folder.glob("*.npz"):
            with contextlib.suppress(FileNotFoundError):
                facts = path.stat()
                found.append((facts.st_mtime, facts.st_size, path))
        return found

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.npz"

    def _note_path(self, key: str) -> Path:
        return self.folder / f"{key}.json"
