"""Scripts without `if __name__ == "__main__"`: every worker would run them again from the top, and start a run itself.

Python tells a worker's process which script it belongs to, and the process imports that script before anything else.
A run that begins during this import leaves a mark, named after a secret that parent and child share, and ends; the
parent finds the mark and says what to do.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba import cloudpickle  # its own copy: numba is needed anyway, and brings it
from torch import nn

from dovetail.logs import tell
from dovetail.runtime.errors import TrainingError

SLOW_S = 3.0
"""From how long on it is said that a worker's import of the script takes its time."""


def leave_when_imported() -> None:
    """End this process where it is a worker's that is still importing its parent's script."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        _mark().touch()
        sys.exit(1)


@contextmanager
def importing(script: str | None) -> Iterator[None]:
    """Import the script that started a run into one of its processes; say where that fails, or takes long."""
    begun_s = time.monotonic()
    try:
        yield
    except Exception as problem:  # whatever stands in a user's script
        frames = traceback.extract_tb(problem.__traceback__)
        last = next((frame for frame in reversed(frames) if frame.filename == script), frames[-1])
        draft = _mark().with_suffix(f".{os.getpid()}")
        draft.write_text(f"{type(problem).__name__}: {problem} ({last.filename}, line {last.lineno})")
        draft.replace(_mark())
        raise
    if (took_s := time.monotonic() - begun_s) > SLOW_S:
        tell(f"importing {script} took {took_s:.0f} s: what stands above its main guard is done in every worker")


def check_guarded() -> None:
    """Refuse to go on where a worker's process ran the script that started it, or could not."""
    if _mark().exists():
        problem = _mark().read_text()
        forget()
        if problem:
            raise TrainingError(
                f"a worker could not import the script that started it: {problem}",
                hint='every worker imports it: what is to be done once stands under `if __name__ == "__main__":`',
            )
        raise TrainingError(
            "every worker runs this script from the top and would start a run of its own",
            hint='put what starts the run under: if __name__ == "__main__":',
        )


def forget() -> None:
    """Remove the mark of an earlier run."""
    _mark().unlink(missing_ok=True)


def check_travels(thing: Any, what: str) -> None:
    """Refuse an object that workers, which are processes of their own, cannot be given."""
    try:
        pickle.dumps(travelling(thing))
    except Exception as problem:  # whatever a user's object raises
        raise TrainingError(
            f"the {what} cannot be sent to workers: {type(problem).__name__}: {problem}",
            hint="it must be picklable: no lambdas, open files or locks; or give it by name, package.module:function",
        ) from None


def travelling(thing: Any) -> Any:
    """Return what workers are given for an object: in a notebook or session, one that brings its classes along."""
    if thing is None or (getattr(sys.modules["__main__"], "__file__", None) and not _of_another_script(thing)):
        return thing  # workers import the script
    return ByValue(thing)


def _of_another_script(thing: Any) -> bool:
    """Say whether a module has classes of a script or notebook that is not the one that runs now."""
    main = sys.modules["__main__"]
    kinds = {type(each) for each in thing.modules()} if isinstance(thing, nn.Module) else {type(thing)}
    return any(kind.__module__ == "__main__" and _found(main, kind.__qualname__) is not kind for kind in kinds)


def _found(main: Any, name: str) -> Any:
    for word in name.split("."):
        main = getattr(main, word, None)
    return main


class ByValue:
    """An object that arrives as itself, with the code of classes and functions that were typed into a session."""

    def __init__(self, thing: Any) -> None:
        """Keep the object."""
        self._thing = thing

    def __reduce__(self) -> tuple[Any, ...]:
        """Have it made again from its bytes."""
        return cloudpickle.loads, (cloudpickle.dumps(self._thing),)  # type: ignore[no-untyped-call]


def _mark() -> Path:
    """Return the file that stands for "the script ran again"."""
    secret = hashlib.sha256(bytes(multiprocessing.current_process().authkey)).hexdigest()[:24]
    return Path(tempfile.gettempdir()) / f"dovetail-unguarded-{secret}"
