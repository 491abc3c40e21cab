"""The format of a path: by the endings of its files, and by what stands in the first of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from dovetail.data.errors import DataError
from dovetail.data.files.opening import DataFile, file_errors, find_files, is_folder, opened
from dovetail.data.files.remote import known, system_of

ENDINGS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "",
    ".txt": "",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".npy": "numpy",
    ".npz": "numpy",
    ".tar": "webdataset",
    ".tgz": "webdataset",
}
"""What an ending stands for; nothing where the content decides."""
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zstd")
LOOKED_AT_BYTES = 64 << 10
TAR_MAGIC_AT = 257
CRITEO_TABS = 39
MAGIC = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"FEA1": "arrow",
    b"\xff\xff\xff\xff": "arrow",
    b"\x93NUMPY": "numpy",
    b"PK\x03\x04": "numpy",
}
"""How files of a format begin; an Arrow stream with the mark of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFormat:
    """A format by its name among the data, and the options that go with it."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)


def is_path(name: str) -> bool:
    """Say whether a word that names data is a path or an address, not the name of a format or a function."""
    looks_like = "/" in name or any(sign in name for sign in "*?[") or _ending(name) in ENDINGS
    return looks_like or Path(name).exists()


def format_of(paths: str | Sequence[str]) -> FoundFormat:
    """Return the format of a file, a folder, a pattern, an address, or several of them.

    Raises DataError where files are of several formats, or hold another one than they are called.
    """
    several = [paths] if isinstance(paths, str) else list(paths)
    if _is_saved_dataset(several):
        return FoundFormat(name="huggingface")
    files = find_files(several)
    by_ending: dict[str, DataFile] = {}
    for file in files:
        by_ending.setdefault(ENDINGS.get(_ending(file.path), ""), file)
    if len(by_ending) > 1:
        (one, first), (other, second) = list(by_ending.items())[:2]
        raise DataError(
            f"`{first}` is {one or 'of an unknown ending'}, and `{second}` {other or 'of an unknown ending'}",
            hint="name files of one format, e.g. by a pattern: logs/*.parquet",
        )
    ((called, file),) = by_ending.items()
    found = _by_content(file)
    if called and found is not None and found.name != called and not (called == "csv" and found.name == "criteo"):
        raise DataError(
            f"`{file}` is called like {called}, and holds {found.name}",
            hint=f"rename it, or give the format itself: data.name = {found.name}, path={file}",
        )
    if called:
        return found if found is not None and found.name == called else FoundFormat(name=called)
    if found is None:
        raise DataError(
            f"the format of `{file}` is not known by its ending nor by its content",
            hint="give it: data.name = csv (or criteo, parquet, arrow, numpy, webdataset), data.options.path = ...",
        )
    return found


def _ending(path: str) -> str:
    """Return the ending of a file without that of what packed it."""
    name = PurePosixPath(path).name.lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    return PurePosixPath(name).suffix


def _is_saved_dataset(paths: Sequence[str]) -> bool:
    """Say whether paths are folders that Hugging Face `datasets` wrote."""
    for path in paths:
        if any(sign in path for sign in "*?["):
            return False
        with file_errors(path):
            system, folder = system_of(path)
            inside = (f"{folder.rstrip('/')}/{name}" for name in ("state.json", "dataset_dict.json"))
            if not is_folder(system, folder) or all(known(system, name) is None for name in inside):
                return False
    return bool(paths)


def _by_content(file: DataFile) -> FoundFormat | None:
    """Return the format that the beginning of a file is of; None where it is of none that we know."""
    with opened(file) as stream:
        head = stream.read(LOOKED_AT_BYTES)
    if head[TAR_MAGIC_AT:].startswith(b"ustar"):
        return FoundFormat(name="webdataset")
    for magic, name in MAGIC.items():
        if head.startswith(magic):
            return FoundFormat(name=name)
    return _of_text(head)


def _of_text(head: bytes) -> FoundFormat | None:
    """Return the format of text by its first line."""
    line, _, _ = head.partition(b"\n")
    try:
        text = line.decode("utf-8-sig").rstrip("\r")
    except UnicodeDecodeError:
        return None
    if text.count("\t") == CRITEO_TABS and re.match(r"[01]\t", text):
        return FoundFormat(name="criteo")
    if "," in text:
        return FoundFormat(name="csv")
    return FoundFormat(name="csv", options={"delimiter": "\t"}) if "\t" in text else None
