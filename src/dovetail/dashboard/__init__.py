"""A page to look at: plans, runs, a cluster and simulations; live over HTTP, or as one file that needs no server.

Every name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.dashboard.report import HtmlReport
    from dovetail.dashboard.server import serve_dashboard
    from dovetail.dashboard.things import Things, open_things

__all__ = ["HtmlReport", "Things", "open_things", "serve_dashboard"]

__getattr__, __dir__ = on_demand(__name__)
