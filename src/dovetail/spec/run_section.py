"""What the sections of a run file have in common."""

from __future__ import annotations

import msgspec

Meta = msgspec.Meta


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: unknown keys are errors."""
