"""What a server tells of itself now and then."""

from __future__ import annotations

from dovetail.runtime.messages import ServerStats
from dovetail.runtime.server.redo import RedoLog
from dovetail.runtime.server.shard import Shard


def stats_of(name: str, shard: Shard, redo: RedoLog, busy_s: float) -> ServerStats:
    """Return what a server holds and has done."""
    stats = [table.stats() for table in shard.tables]
    return ServerStats(
        name=name,
        rows=sum(each.num_rows for each in stats),
        memory_bytes=sum(each.memory_bytes for each in stats) + 4 * shard.values.nbytes,
        pulled_keys=shard.pulled_keys,
        pushed_keys=shard.pushed_keys,
        busy_s=busy_s,
        log_s=redo.cost.seconds,
        log_bytes=redo.cost.num_bytes,
    )
