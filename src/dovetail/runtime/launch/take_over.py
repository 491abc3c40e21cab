"""Going on with a run that another launcher still runs: get ready, have that one stop, begin where it ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.launch.fork_server import fork_server
from dovetail.runtime.model.build import build_model
from dovetail.runtime.prepare.lock import owner_of
from dovetail.runtime.prepare.placement import Elsewhere
from dovetail.runtime.prepare.resolve import resolve
from dovetail.runtime.prepare.run_folder import load_source
from dovetail.runtime.private_folder import remove_private_folder
from dovetail.spec.run import Run

STOP_MOST_S = 120.0
"""How long the launcher before may take to keep a checkpoint and end."""
LOOK_S = 0.02


def take_over(run: Run, folder: Path, tell: Callable[[str], None]) -> None:
    """Get ready to go on with a run, then have whoever runs it stop; return once it is free."""
    owner = owner_of(folder)
    if owner is None:
        return
    if not owner.is_here or owner.process <= 0:
        raise TrainingError(f"{folder} is in use by {owner}", hint="stop it there, then go on with --resume")
    _get_ready(run)
    if owner_of(folder) != owner:
        return  # it has ended by itself; whoever else may have taken it is found out by the lock
    tell(f"ready to go on; {owner} keeps a checkpoint and ends")
    try:
        os.kill(owner.process, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has ended in the meantime
    except PermissionError:
        raise TrainingError(f"{owner} is another user's", hint="have them stop it, then go on with --resume") from None
    until_s = time.monotonic() + STOP_MOST_S
    while owner_of(folder) == owner:
        if time.monotonic() > until_s:
            raise TrainingError(
                f"{owner} did not end within {STOP_MOST_S:.0f} s", hint="see what it says, and stop it yourself"
            )
        time.sleep(LOOK_S)


def _get_ready(run: Run) -> None:
    """Load what the run's processes need, and do once here what is done when it begins: the second time is fast."""
    server = fork_server()
    data = load_source(run)
    built = build_model(run, data.schema)
    _, private = resolve(run, built, data, timeline=False, bare=False, elsewhere=Elsewhere())
    remove_private_folder(private)
    server.wait_until_ready()
