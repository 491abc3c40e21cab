"""Training over servers and workers of different speed: real processes, one run.

Every name is imported when it is first asked for: coordinators and servers do without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.runtime.api import resume, train
    from dovetail.runtime.errors import TrainingError
    from dovetail.runtime.finished.evaluate import evaluate_run
    from dovetail.runtime.finished.export import export_run
    from dovetail.runtime.finished.predict import Predictions, predict_run
    from dovetail.runtime.finished.restore import restore_into, restore_model
    from dovetail.runtime.finished.result import TrainingResult, Validated
    from dovetail.runtime.launch.join import join
    from dovetail.runtime.monitor.callbacks import Callback
    from dovetail.runtime.monitor.loggers import Logger, MLflow, TensorBoard, WandB

__all__ = [
    "Callback",
    "Logger",
    "MLflow",
    "Predictions",
    "TensorBoard",
    "TrainingError",
    "TrainingResult",
    "Validated",
    "WandB",
    "evaluate_run",
    "export_run",
    "join",
    "predict_run",
    "restore_into",
    "restore_model",
    "resume",
    "train",
]

__getattr__, __dir__ = on_demand(__name__)
