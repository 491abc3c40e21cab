"""A share of the processor: how slow machines are made on one machine."""

from __future__ import annotations

from dovetail.testbed.errors import HostError
from dovetail.testbed.group import Group

_LEAST_QUOTA_US = 1000  # the kernel refuses less


class CpuQuota(Group):
    """At most `cores` cores' worth of time for the processes in it, dealt out every `period_ms`.

    A process that has used up cores x period_ms of processor time stands still until the next period. A short period
    makes an even but slow core, a long one a fast core that stops and goes.
    """

    def __init__(self, name: str, cores: float, period_ms: float = 10) -> None:
        """Keep the quota, which is in force from `with` on."""
        super().__init__("cpu", name)
        self._period_us = round(period_ms * 1000)
        self._quota_us = self._checked_us(cores)

    def change(self, cores: float) -> None:
        """Give the processes more or less from now on."""
        self._quota_us = self._checked_us(cores)
        self.apply()

    def apply(self) -> None:
        """Write quota and period, the period first: the kernel holds the quota against it."""
        if self.place.version == 2:
            self.write("cpu.max", f"{self._quota_us} {self._period_us}")
        else:
            self.write("cpu.cfs_period_us", self._period_us)
            self.write("cpu.cfs_quota_us", self._quota_us)

    def _checked_us(self, cores: float) -> int:
        """Return the quota in microseconds a period."""
        quota_us = round(cores * self._period_us)
        if not 1000 <= self._period_us <= 1_000_000:
            raise HostError(f"the period is {self._period_us / 1000:g} ms", hint="set it between 1 and 1000 ms")
        if quota_us < _LEAST_QUOTA_US:
            raise HostError(
                f"{cores:g} cores are {quota_us} us in a period of {self._period_us / 1000:g} ms, less than 1 ms",
                hint=f"set `period_ms` to {1 / cores:.0f} or more" if cores > 0 else "set `cores` above zero",
            )
        return quota_us
