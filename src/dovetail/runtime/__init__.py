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
    from dovetail.runtime.finished.validated import Validated
    from dovetail.runtime.launch.callbacks import Callback
    from dovetail.runtime.launch.join import join
    from dovetail.runtime.launch.loggers import Logger, MLflow, TensorBoard, WandB

__all__ = [
    "Callback",
    "Logger",
    "MLflow",
    "TensorBoard",
    "TrainingError",
    "TrainingResult",
    "Validated",
    "WandB",
    "join",
    "restore_into",
    "restore_model",
    "resume",
    "train",
]

__getattr__ = on_demand(__name__)
