"""Server-sent events: what a browser or a program reads line by line, as it happens."""

from __future__ import annotations

from typing import Any

import msgspec


def server_sent(kind: str, data: Any, *, number: str | None = None) -> bytes:
    """Return an event: plain values, or JSON as it is, under a number that a reader says when it comes back."""
    begin = b"" if number is None else b"id: " + number.encode() + b"\n"
    text = data if isinstance(data, bytes) else msgspec.json.encode(data)
    return begin + b"event: " + kind.encode() + b"\ndata: " + text + b"\n\n"
