"""Workers on hosts of their own, as tests hand them to the launcher."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial

from dovetail.runtime.launch.entry import EnterHost
from testbed import enter


class OtherHosts(nullcontext[None]):
    """A sandbox in which some workers live in network namespaces, by their names."""

    def __init__(self, namespaces: Mapping[str, str]) -> None:
        super().__init__()
        self._namespaces = namespaces
        self.starts: list[tuple[str, int]] = []

    def entrance(self, name: str) -> EnterHost | None:
        return partial(enter, self._namespaces[name]) if name in self._namespaces else None

    def started(self, name: str, process_id: int) -> None:
        self.starts.append((name, process_id))
