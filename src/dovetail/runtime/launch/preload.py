"""What a run's processes load before they are needed: imported by the one that forks them, it starts no thread."""

from __future__ import annotations

import numpy as np
import tensorboardX.event_file_writer  # noqa: F401 - the coordinator's

import dovetail.data.load
import dovetail.models.load
import dovetail.runtime.coordinator.loop
import dovetail.runtime.launch.entry
import dovetail.runtime.prepare.run_folder
import dovetail.runtime.server.loop
import dovetail.runtime.trainer.sharded.worker
import dovetail.runtime.worker.loop
import dovetail.runtime.worker.stages.loop  # noqa: F401 - for whoever is forked from here
from dovetail.embedding import Table, make_row_optimizer
from dovetail.splitmix import mix

KEYS = np.arange(8, dtype=np.int64)

mix(np.uint64(1))  # the first kernel of a process takes most of a second, and others some time too
with Table(width=4, optimizer=make_row_optimizer("adam"), host_bytes=1 << 20) as table:
    table.update(KEYS, table.lookup(KEYS))
