"""Members of a group as threads of one process: the same Gloo, sockets and all."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dovetail.runtime.clocks import AwakeClock
from dovetail.runtime.trainer.sharded.process_group import ProcessGroup
from dovetail.runtime.worker.control import Pulse


def together(folder: Path, size: int, work: Callable[[ProcessGroup], Any]) -> list[Any]:
    """Have every member of a group do some work; return what each returned, by rank."""

    def be(rank: int) -> Any:
        pulse = Pulse(AwakeClock())
        return work(ProcessGroup(folder / "store", "rows", rank, size, pulse=pulse))

    with ThreadPoolExecutor(size) as pool:
        return [each.result(timeout=60) for each in [pool.submit(be, rank) for rank in range(size)]]
