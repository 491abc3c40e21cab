"""A cluster that is shared for real: a daemon that takes jobs, asks a policy, and starts, resizes and stops them.

The package may be called, as the command is: `dovetail.serve("jobs")`. A function of that name beside it would be gone
as soon as anything here is imported.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.serve.client import Client
    from dovetail.serve.daemon import serve
    from dovetail.serve.here import serve_here
    from dovetail.serve.settings import DaemonSettings
    from dovetail.serve.submission import Submission

__all__ = ["Client", "DaemonSettings", "Submission", "serve", "serve_here"]

__getattr__, __dir__ = on_demand(__name__)


class _Command(ModuleType):
    """A module that is called like the function in it."""

    def __call__(self, folder: Any, **how: Any) -> None:
        """Share this machine between jobs; see `serve_here`."""
        self.serve_here(folder, **how)


sys.modules[__name__].__class__ = _Command
