"""What every message is."""

from __future__ import annotations

import msgspec


class MessageKind(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """A message: its class name is its tag."""
