"""A limit on memory: how small machines are made on one machine."""

from __future__ import annotations

from dovetail.cgroups import Cgroup, LimitError


class MemoryLimit(Cgroup):
    """At most `limit_bytes` of memory, swap included, for the processes in it; the kernel ends one that needs more.

    What a process took before it was added does not count.
    """

    def __init__(self, name: str, limit_bytes: int) -> None:
        """Keep the limit, which is in force from `with` on."""
        super().__init__("memory", name)
        self._limit_bytes = _checked(limit_bytes)

    def change(self, limit_bytes: int) -> None:
        """Set another limit; one below what is in use is refused where the kernel cannot free enough."""
        self._limit_bytes = _checked(limit_bytes)
        self.apply()

    def apply(self) -> None:
        """Write the limit on memory and, where the kernel counts it, on memory with swap."""
        if self.place.version == 2:
            self.write("memory.max", self._limit_bytes)
            if (self.path / "memory.swap.max").exists():
                self.write("memory.swap.max", 0)
            return
        with_swap = (self.path / "memory.memsw.limit_in_bytes").exists()
        if with_swap:  # never below the other, whichever way it moves
            self.write("memory.memsw.limit_in_bytes", -1)
        self.write("memory.limit_in_bytes", self._limit_bytes)
        if with_swap:
            self.write("memory.memsw.limit_in_bytes", self._limit_bytes)


def _checked(limit_bytes: int) -> int:
    """Return a limit that a process can live in."""
    if limit_bytes < 1_000_000:
        raise LimitError(f"the memory limit is {limit_bytes} bytes", hint="set it to a megabyte or more")
    return limit_bytes
