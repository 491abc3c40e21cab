"""For programs that `dovetail serve` runs: whether they are to stop, and how far they have come.

    from dovetail.job import report, stop_asked

    for step in range(first, last):
        train(step)
        report(work=step, total=last, loss=loss)
        if stop_asked():
            save(step)
            break

Without Dovetail's daemon both do nothing.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

_asked = threading.Event()
_is_set = False


def stop_asked() -> bool:
    """Say whether SIGTERM has come: keep a checkpoint and end with exit status 0. Call it once before the work too."""
    global _is_set  # noqa: PLW0603 - a handler is the process's own
    if not _is_set and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: _asked.set())
        _is_set = True
    return _asked.is_set()


def stop_asked_of_any() -> bool:
    """Say whether any process of a `torch.distributed` group was asked to stop: the same answer in all of them.

    All processes have to call it as often. So they stop after the same step, and one of them can save for all.
    """
    import torch  # noqa: PLC0415 - whoever has a group has it
    from torch import distributed  # noqa: PLC0415

    asked = stop_asked()
    if not distributed.is_available() or not distributed.is_initialized():
        return asked
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    flag = torch.tensor(int(asked), device=device)
    distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
    return bool(flag.item())


def report(*, work: float, total: float | None = None, loss: float | None = None) -> None:
    """Tell the daemon how much work is done, of how much, and the loss; once a second or so is enough."""
    path = os.environ.get("DOVETAIL_PROGRESS")
    if path is None:
        return
    line = {"unix_s": time.time(), "samples": work, "total_samples": total, "loss": loss}
    with suppress(OSError), Path(path).open("a") as file:
        file.write(json.dumps(line) + "\n")
