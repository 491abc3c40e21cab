"""The dashboard as a server of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.dashboard.things import Things
from dovetail.errors import MissingExtraError
from dovetail.serve.listening import listen_at

HERE = ("127.0.0.1", "localhost", "::1")
END_S = 3
"""How long streams may take to end with the server."""


def serve_dashboard(
    things: Things,
    *,
    host: str = "127.0.0.1",
    port: int = 8420,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the page until Ctrl-C or SIGTERM; `tell` hears its address.

    Whoever reaches the port may look, and a token is asked for by the daemon alone: `host` is this machine's own unless
    others are to look.
    """
    try:
        import uvicorn  # noqa: PLC0415 - an extra

        from dovetail.dashboard.app import DashboardApp  # noqa: PLC0415 - needs the same extra
        from dovetail.dashboard.guard import PageGuard  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"what `dovetail dashboard` needs ({error.name})", extra="dashboard") from None
    listening = listen_at(host, port)
    dashboard = DashboardApp(things)
    server: Any = uvicorn.Server(
        uvicorn.Config(
            PageGuard(dashboard.app(), names=[host.lower()]),
            ws="none",
            log_level="critical",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=END_S,
        )
    )
    dashboard.is_closing = lambda: bool(server.should_exit)
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - how it is shown
    tell(f"look at http://{f'[{shown}]' if ':' in shown else shown}:{listening.getsockname()[1]}")
    try:
        dashboard.start()
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        dashboard.close()
        listening.close()
