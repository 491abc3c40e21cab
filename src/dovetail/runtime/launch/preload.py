"""What processes load before they are needed: imported by the one that forks workers, it starts no thread."""

from __future__ import annotations

import numpy as np

import dovetail.data.load
import dovetail.models.load
import dovetail.runtime.prepare.run_folder
import dovetail.runtime.worker.loop
import dovetail.runtime.worker.stages.loop  # noqa: F401 - for whoever is forked from here
from dovetail.splitmix import mix

mix(np.uint64(1))  # the first kernel of a process takes most of a second
