"""Whether a host has the same Dovetail as this one, and how this one is brought there.

Two that call themselves the same version may differ by a line, so the files themselves are compared. What asks on the
host is a few lines of Python that need nothing installed.
"""

from __future__ import annotations

import io
import shlex
import tarfile
from pathlib import Path

import msgspec

from dovetail import version

PACKAGE = Path(version.__file__).parent
NEEDED = ("msgspec", "numba", "numpy", "psutil", "pyarrow", "safetensors", "torch", "zmq")
"""Packages that a worker imports."""
CACHE = '${XDG_CACHE_HOME:-"$HOME/.cache"}/dovetail/code'

HASH = """
import hashlib, pathlib
def code_hash(folder):
    found = hashlib.sha256()
    for path in sorted(pathlib.Path(folder).rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        found.update(path.relative_to(folder).as_posix().encode() + b"\\0" + path.read_bytes() + b"\\0")
    return found.hexdigest()
"""
PROBE = (
    HASH
    + """
import importlib.util, json, re, sys
names = sys.argv[1].split(",")
found = {"python": ".".join(map(str, sys.version_info[:3])), "missing": [], "version": "", "code": ""}
found["missing"] = [name for name in names if importlib.util.find_spec(name) is None]
spec = importlib.util.find_spec("dovetail")
if spec is not None and spec.origin:
    folder = pathlib.Path(spec.origin).parent
    texts = [path.read_text() for path in (folder / "version.py", folder / "__init__.py") if path.is_file()]
    said = re.search(r'__version__ = "([^"]*)"', "".join(texts))
    found["version"] = said.group(1) if said else "?"
    found["code"] = code_hash(folder)
print("dovetail-probe " + json.dumps(found))
"""
)
UNPACK = """
import os, pathlib, shutil, sys, tarfile
home = pathlib.Path(os.path.expandvars(sys.argv[1]))
home.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
draft = home.with_name(f".{home.name}.{os.getpid()}")
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as archive:
    archive.extractall(draft, filter="data")
try:
    draft.rename(home)
except OSError:
    shutil.rmtree(draft, ignore_errors=True)
print("dovetail-unpacked", home.is_dir())
"""


class Probe(msgspec.Struct, frozen=True):
    """What a host's Python has."""

    python: str
    missing: list[str]
    """Of the packages that a worker imports."""
    version: str
    """Of Dovetail there; empty where there is none."""
    code: str
    """A checksum of its files."""


def own_code() -> str:
    """Return the checksum of this Dovetail's files."""
    scope: dict[str, object] = {}
    exec(HASH, scope)  # noqa: S102 - the lines above, which hosts run as well
    code_hash = scope["code_hash"]
    return str(code_hash(PACKAGE)) if callable(code_hash) else ""


def read_probe(printed: str) -> Probe | None:
    """Return what a probe found out of what a login printed, which may say more; None where it did not come so far."""
    for line in printed.splitlines():
        if line.startswith("dovetail-probe "):
            return msgspec.json.decode(line.removeprefix("dovetail-probe "), type=Probe)
    return None


def archive() -> bytes:
    """Return this Dovetail's files, packed: the same bytes for the same files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as found:
        for path in sorted(PACKAGE.rglob("*")):
            if path.is_file() and path.suffix in (".py", ".toml", ".typed"):
                found.add(path, arcname=f"dovetail/{path.relative_to(PACKAGE).as_posix()}", recursive=False)
    return packed.getvalue()


def in_shell(path: str) -> str:
    """Return a path as a shell takes it, a leading `~/` being the home folder."""
    return "~/" + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)
