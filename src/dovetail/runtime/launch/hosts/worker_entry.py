"""Where a process of a run begins on a host that is not the launcher's: its keeper starts it here.

The folder is the keeper's own, and holds what was brought: the blueprint, this process's keys, and what the model and
the data need. Tensors go over TCP.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from dovetail.runtime.launch.entry import begin, first_worker, guarded
from dovetail.runtime.launch.fork_server import LEAVE
from dovetail.runtime.process import Process
from dovetail.spec.run import RunWorker

LOOK_S = 0.5


def main() -> int:
    """Be a worker; with a third argument, one of these settings that joins the run."""
    folder, name, *more = sys.argv[1:]
    path = Path(folder)
    threading.Thread(target=_end_with, args=(os.getppid(),), name="dovetail-keeper", daemon=True).start()
    begin(path, name)
    settings = msgspec.json.decode(more[0], type=RunWorker) if more else None
    return guarded(name, _work, path, name, settings)


def _end_with(keeper: int) -> None:
    """End when the keeper does."""
    while os.getppid() == keeper:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _work(folder: Path, name: str, settings: RunWorker | None) -> None:
    """Work for the run over the network, with data and code that are the run's."""
    from dovetail.runtime.launch.join import check_same_data  # noqa: PLC0415 - torch, once the log is there
    from dovetail.runtime.prepare.devices import check_device  # noqa: PLC0415
    from dovetail.runtime.prepare.run_folder import load_source  # noqa: PLC0415
    from dovetail.runtime.worker.loop import work  # noqa: PLC0415
    from dovetail.runtime.worker.stages.loop import work_in_stage  # noqa: PLC0415

    told = threading.Event()
    signal.signal(LEAVE, lambda *_: told.set())
    process = Process(folder, name, is_local=False)
    run = process.blueprint.run
    settings = settings or dict(run.each_worker()).get(name) or first_worker(run)
    check_device(settings.device, f'device = "{settings.device}" of worker `{name}`')
    source = load_source(run)
    check_same_data(process.blueprint, source)
    if settings.stage:
        work_in_stage(process, settings, source, None)
    else:
        work(process, settings, source, None, told.is_set)


if __name__ == "__main__":
    sys.exit(main())
