"""`dovetail serve` as a function."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from dovetail.serve.daemon import serve
from dovetail.serve.settings import DaemonSettings
from dovetail.simulator.traces.read import parse_nodes


def serve_here(
    folder: str | Path,
    *,
    nodes: str | None = None,
    policy: str = "dovetail",
    quotas: Mapping[str, int] | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Share this machine between jobs until Ctrl-C or SIGTERM; jobs that run go on. The same as `dovetail serve`.

    `nodes` says what there is to share, as TYPE:WORKERSxCOUNT,...; absent, a cpu worker a core. `quotas` are the most
    workers that each user's jobs hold together.
    """
    shared = parse_nodes(nodes or f"cpu:{len(os.sched_getaffinity(0))}x1")
    settings = DaemonSettings(nodes=shared, policy=policy, quotas=dict(quotas or {}))
    serve(Path(folder).absolute(), settings, host=host, port=port, tell=tell)
