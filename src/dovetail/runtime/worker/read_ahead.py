"""Having the next item made while one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterator[Item], name: str) -> Iterator[Item]:
    """Yield items that a thread makes, one ahead; what goes wrong there goes wrong here."""
    made: queue.Queue[Item | None] = queue.Queue(maxsize=1)
    failed: list[BaseException] = []

    def make() -> None:
        try:
            for item in items:
                made.put(item)
        except BaseException as error:  # whoever waits says it
            failed.append(error)
        made.put(None)

    threading.Thread(target=make, name=name, daemon=True).start()
    while (item := made.get()) is not None:
        yield item
    if failed:
        raise failed[0]
