"""Ports that nobody else gets between their being drawn and a process of the run listening on them.

A socket that is bound and does not listen keeps its port from everyone who asks for any port; whoever asks for this
very one, as our processes do, may listen on it, where both sockets allow it (SO_REUSEADDR, which ZeroMQ sets). When a
process of the run dies, the next one finds its port free, too. Other systems than Linux have other rules: there a port
is drawn and let go.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

MOST_RUNS = 32
"""Of one process whose ports are held: one that makes more ready than it runs keeps no files open for all of them."""
_held: dict[Path, list[int]] = {}
"""Their sockets' descriptors, by the private folder of their run, with which they go."""


def hold_port(address: str, folder: Path) -> int:
    """Return a port that stays ours until the private folder of the run goes; OSError: nobody can listen there."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address, 0))
        port = int(holder.getsockname()[1])
        if sys.platform == "linux":
            _held.setdefault(folder, []).append(holder.detach())
    if len(_held) > MOST_RUNS:
        let_go(next(iter(_held)))
    return port


def let_go(folder: Path) -> None:
    """Give back the ports of a run."""
    for holder in _held.pop(folder, ()):
        os.close(holder)
