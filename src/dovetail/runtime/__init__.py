"""Training over servers and workers of different speed: real processes, one run.

Every name is imported when it is first asked for: coordinators and servers do without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.runtime.api import resume, train
    from dovetail.runtime.errors import TrainingError
    from dovetail.runtime.finished.restore import restore_into, restore_model
    from dovetail.runtime.finished.result import TrainingResult

__all__ = ["TrainingError", "TrainingResult", "restore_into", "restore_model", "resume", "train"]

_HOME = {
    "api": ("resume", "train"),
    "errors": ("TrainingError",),
    "finished.restore": ("restore_into", "restore_model"),
    "finished.result": ("TrainingResult",),
}
_MODULE_OF = {name: f"dovetail.runtime.{module}" for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name of this package that is not there yet."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module `dovetail.runtime` has no attribute `{name}`")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
