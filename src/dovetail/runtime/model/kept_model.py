"""A model that was an object of a program, kept in the run's folder: whoever goes on with the run needs no program.

model.pickle holds the module with all of its settings and buffers, and without the values of its parameters, which
checkpoints have. Classes of modules are named there, and imported anew from where they were; those of a script or of a
notebook are there with their code. The first line says where modules were imported from, and proves by a key of this
user's own that this user wrote it: a folder that came from elsewhere runs nothing of its own.
"""

from __future__ import annotations

import hmac
import importlib
import io
import math
import os
import pickle
import secrets
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any

import msgspec
import torch
from numba import cloudpickle
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dovetail.atomic_file import replace_file
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import MODEL
from dovetail.runtime.trust import why_not_ours
from dovetail.spec.run import Run

MOST_BYTES = 64 << 20
"""A module with more in its buffers and settings is not kept."""
DRAWN_UP_TO = 1 << 22
"""Parameters of no more numbers get small random ones, so that the model can be tried on some samples."""


class _FirstLine(msgspec.Struct, frozen=True):
    """What is said before the bytes."""

    folders: list[str]
    """Where its modules were imported from, but for installed ones."""
    proof: str
    """That this user wrote the folders and what follows."""


class _Pickler(cloudpickle.CloudPickler):
    """Writes parameters as what they are like."""

    def reducer_override(self, obj: Any) -> Any:
        """Have a parameter made anew, without its values."""
        if isinstance(obj, nn.Parameter) and not is_lazy(obj):
            return blank, (tuple(obj.shape), obj.dtype, obj.requires_grad, obj.is_meta)
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def blank(shape: tuple[int, ...], dtype: torch.dtype, requires_grad: bool, is_meta: bool) -> nn.Parameter:
    """Return a parameter whose values come from a checkpoint."""
    values: Tensor = torch.zeros(shape, dtype=dtype, device="meta" if is_meta else "cpu")
    if values.is_floating_point() and not is_meta and values.numel() <= DRAWN_UP_TO:
        bound = 1 / math.sqrt(max(1, shape[-1] if shape else 1))
        values.uniform_(-bound, bound, generator=torch.Generator().manual_seed(0))
    return nn.Parameter(values, requires_grad=requires_grad)


def keep_model(model: nn.Module, folder: Path) -> None:
    """Keep a module in a run's folder; what cannot be pickled, or is too large, is not kept."""
    place, written = folder / MODEL, io.BytesIO()
    place.unlink(missing_ok=True)
    try:
        _Pickler(written).dump(model)  # type: ignore[no-untyped-call]
    except Exception:
        return
    if written.tell() <= MOST_BYTES:
        folders = _folders_of(model)
        try:
            line = _FirstLine(folders=folders, proof=_proof(folders, written.getvalue()))
        except (OSError, RuntimeError):  # no place for the key
            return
        replace_file(place, msgspec.json.encode(line) + b"\n" + written.getvalue())


def kept_model(folder: Path, run: Run, *, trust: bool = False) -> nn.Module | None:
    """Return the module that a run began with, where it was an object and is kept; None where there is none.

    The file runs code: it is read where this user wrote it and nobody else can, or with `trust`.
    """
    place, name = folder / MODEL, run.model.name
    if "." not in name or ":" in name or not place.is_file():
        return None
    for path in () if trust else (folder, place):
        if (why := why_not_ours(path)) is not None:
            raise TrainingError(
                f"{place} holds code to run, the model `{name}`, and {path} {why}",
                hint="go on with --trust (in Python: trust=True) where you know who wrote it, or make the folder yours "
                "alone",
            )
    try:
        line, _, pickled = place.read_bytes().partition(b"\n")
        first = msgspec.json.decode(line, type=_FirstLine)
        if not (trust or hmac.compare_digest(first.proof, _proof(first.folders, pickled))):
            raise TrainingError(
                f"{place} holds code to run, the model `{name}`, and this user did not write it here",
                hint=f"{_how_to_give(name)}; or go on with --trust (in Python: trust=True) where you know who wrote it",
            )
        _find_modules(first.folders)
        model = pickle.loads(pickled)  # noqa: S301 - checked above
    except TrainingError:
        raise
    except Exception as problem:  # whatever importing and making a user's module raises
        raise TrainingError(
            f"the model of this run, an object `{name}`, cannot be made again: {type(problem).__name__}: {problem}",
            hint=f"{_how_to_give(name)}; or run from where its module can be imported",
        ) from None
    return model if isinstance(model, nn.Module) else None


def _how_to_give(name: str) -> str:
    """Return how the model of a run is named."""
    module, _, kind = name.rpartition(".")
    place = "FILE.py" if module == "__main__" else module
    return (
        f"say what makes it: --model {place}:{kind} (a class, or a function without arguments), in a program "
        f"model={kind}(...)"
    )


def _proof(folders: list[str], pickled: bytes) -> str:
    """Return what only who has this user's key can say of a file."""
    return hmac.new(_key(), msgspec.json.encode(folders) + b"\n" + pickled, "sha256").hexdigest()


def _key() -> bytes:
    """Return this user's key, which is drawn when it is first needed."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "dovetail"
    place = home / "kept-models.key"
    if not place.exists():
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = place.with_suffix(f".{os.getpid()}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        try:
            os.link(draft, place)  # whoever is first
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return place.read_bytes()


def _folders_of(model: nn.Module) -> list[str]:
    """Return from which folders the classes of a module were imported, but for installed ones."""
    installed = [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), site.getusersitepackages()]
    found: dict[str, None] = {}
    for name in {type(each).__module__ for each in model.modules()} - {"__main__"}:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None and not any(Path(file).is_relative_to(place) for place in installed):
            depth = name.count(".") + (Path(file).name == "__init__.py")
            found[str(Path(file).resolve().parents[depth])] = None
    return list(found)


def _find_modules(folders: list[str]) -> None:
    """Have modules found where they were, after all other places."""
    for folder in folders:
        if folder not in sys.path:
            sys.path.append(folder)
    importlib.invalidate_caches()
