"""What a process of a run needs on another host: brought there each time that it is started, and nothing else.

The blueprint, its own secret key and the public keys of those that it calls or that call it, frozen parameters, the
newest running statistics, and files of the user's own code. Data are not brought: they must be there, at their path.
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.data.files.formats import is_path
from dovetail.errors import DovetailError
from dovetail.privacy.keys import SAMPLING_KEY
from dovetail.references import import_function
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import BLUEPRINT, FIXED, KEYS
from dovetail.spec.run import Run
from dovetail.transport.keys import PUBLIC, SECRET


def files_for(folder: Path, name: str, run: Run) -> dict[str, bytes]:
    """Return the files that a process needs, by their path below its folder."""
    found = {BLUEPRINT: (folder / BLUEPRINT).read_bytes()}
    for key in (folder / KEYS).glob(f"*{PUBLIC}"):
        found[f"{KEYS}/{key.name}"] = key.read_bytes()
    secret = f"{KEYS}/{name}{SECRET}"
    found[secret] = (folder / secret).read_bytes()
    sampling = f"{KEYS}/{SAMPLING_KEY}"
    if (folder / sampling).is_file():  # the key of noise is the servers' alone
        found[sampling] = (folder / sampling).read_bytes()
    if (folder / FIXED).is_file():
        found[FIXED] = (folder / FIXED).read_bytes()
    return found | _newest_statistics(folder) | code_of(run)


def _newest_statistics(folder: Path) -> dict[str, bytes]:
    """Return the running statistics of the newest checkpoint that has them, and what vouches for them."""
    for kept in reversed(checkpoints.all_in(folder)):
        try:
            if checkpoints.read_statistics(kept, checkpoints.RunManifest.read(kept)) is not None:
                names = [path for path in kept.iterdir() if path.name in (checkpoints.STATISTICS, checkpoints.MANIFEST)]
                return {str(path.relative_to(folder)): path.read_bytes() for path in names}
        except (TrainingError, OSError):
            continue  # damaged, or dropped in this moment
    return {}


def code_of(run: Run) -> dict[str, bytes]:
    """Return the files of the user's own code that a run names, by the path under which it is imported there."""
    found: dict[str, bytes] = {}
    for reference in references_in(run):
        for path, below in _files_of(reference):
            found[below] = path.read_bytes()
    return found


def references_in(run: Run) -> list[str]:
    """Return what a run names as package.module:function or file.py:function for its workers."""
    loss = run.model.loss
    names = [*(loss.values() if isinstance(loss, dict) else [loss]), *(run.model.metrics or ())]
    return [name for name in [run.model.name, run.data.name, *names] if name is not None and ":" in name]


def _files_of(reference: str) -> Iterator[tuple[Path, str]]:
    """Yield the files behind a reference, and where they go."""
    place = reference.rpartition(":")[0]
    if place.endswith(".py"):
        path = Path(place)
        if path.is_absolute() or ".." in path.parts:
            raise TrainingError(
                f"`{reference}` is not below the folder that this was started in, so it cannot be brought to a host",
                hint="start from the folder that the file is in, or below, and give its path from there",
            )
        yield path, str(path)
        return
    try:
        file = inspect.getsourcefile(inspect.unwrap(import_function(reference)))
    except (DovetailError, TypeError):
        return  # whoever builds the model says what is wrong
    top = place.partition(".")[0]
    module = sys.modules.get(top)
    if file is None or module is None or _is_installed(Path(file)) or top == "dovetail":
        return
    folders = [Path(folder) for folder in getattr(module, "__path__", ())]
    if not folders:
        yield Path(file), f"{top}.py"
    for folder in folders:
        for path in folder.rglob("*.py"):
            yield path, str(Path(top) / path.relative_to(folder))


def _is_installed(path: Path) -> bool:
    """Say whether code comes with an installed package, which a host has its own of."""
    paths = sysconfig.get_paths()
    return any(path.is_relative_to(paths[kind]) for kind in ("purelib", "platlib", "stdlib", "platstdlib"))


def data_of(run: Run) -> tuple[str, ...]:
    """Return the paths that a run reads on a disk: its data, and those that it is tried on."""
    found: list[str] = []
    for name, options in ((run.data.name, run.data.options), (run.validation.name, run.validation.options)):
        is_function = name is None or (":" in name and "://" not in name)
        found += [] if is_function or not is_path(str(name)) or "://" in str(name) else [str(name)]
        found += data_paths(options)
    return tuple(dict.fromkeys(found))


def data_paths(options: Mapping[str, Any]) -> Sequence[str]:
    """Return the files that data are read from, where their options name any on a disk."""
    said = options.get("path")
    paths = [said] if isinstance(said, str) else list(said or ())
    return [str(path) for path in paths if "://" not in str(path)]
