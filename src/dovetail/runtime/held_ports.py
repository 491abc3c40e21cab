"""Ports that nobody else gets between their being drawn and a process of the run listening on them.

A socket that is bound and does not listen keeps its port from everyone who asks for any port; whoever asks for this
very one, as our processes do, may listen on it, where both sockets allow it (SO_REUSEADDR, which ZeroMQ sets). When a
process of the run dies, the next one finds its port free, too. Other systems than Linux have other rules: there a port
is drawn and let go.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

_held: dict[Path, list[socket.socket]] = {}
"""By the private folder of their run, with which they go."""


def draw_port(address: str) -> tuple[int, socket.socket]:
    """Return a port that nobody listens on, and what keeps it from others until it is closed; OSError: no such host."""
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address, 0))
        port = int(holder.getsockname()[1])
    except OSError:
        holder.close()
        raise
    if sys.platform != "linux":
        holder.close()
    return port, holder


def hold_port(address: str, folder: Path) -> int:
    """Return a port that stays ours until the private folder of the run goes."""
    port, holder = draw_port(address)
    _held.setdefault(folder, []).append(holder)
    return port


def let_go(folder: Path) -> None:
    """Give back the ports of a run."""
    for holder in _held.pop(folder, ()):
        holder.close()
