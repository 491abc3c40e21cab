"""A port to listen at, or why it cannot be had."""

from __future__ import annotations

import socket

from dovetail.errors import DovetailError


def listen_at(host: str, port: int) -> socket.socket:
    """Return a socket that listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(512)
    except OSError as error:
        listening.close()
        raise DovetailError(
            f"{host}:{port}: {error.strerror}", hint="give another --port; 0 takes a free one"
        ) from None
    return listening
