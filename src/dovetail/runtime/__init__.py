"""Training over servers and workers of different speed: real processes, one run.

Every name is imported when it is first asked for: coordinators and servers do without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.runtime.api import resume, train
    from dovetail.runtime.errors import TrainingError
    from dovetail.runtime.finished.restore import restore_into, restore_model
    from dovetail.runtime.finished.result import TrainingResult

__all__ = ["TrainingError", "TrainingResult", "restore_into", "restore_model", "resume", "train"]

__getattr__ = on_demand(__name__)
