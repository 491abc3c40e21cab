"""What a table holds and what it has done, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStats:
    """Rows and bytes by tier, and what was moved since the table was made."""

    num_rows: int
    host_rows: int
    disk_rows: int
    device_rows: int
    memory_bytes: int
    budget_bytes: int
    index_bytes: int
    host_row_bytes: int
    disk_bytes: int
    device_bytes: int
    num_looked_up: int
    num_fetched: int
    num_evicted: int
    num_written: int
    num_expired: int

    @property
    def miss_ratio(self) -> float:
        """Return fetches from below, prefetches included, per row looked up."""
        return self.num_fetched / self.num_looked_up if self.num_looked_up else 0.0
