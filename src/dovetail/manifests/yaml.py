"""Manifests as YAML: in the order they are given, scripts as they are written, text that no reader takes for more."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from yaml import SafeDumper, ScalarNode, dump_all

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS = re.compile(r"(?i)true|false|yes|no|on|off|y|n|null")
"""What some reader takes for something else than text: `y` and `1e3`, which PyYAML lets stand, are not for all."""


class _Dumper(SafeDumper):
    """Writes every value out, however often it occurs."""

    def ignore_aliases(self, data: Any) -> bool:
        """Have no anchors."""
        return True


def _text(dumper: SafeDumper, text: str) -> ScalarNode:
    is_plain = _PLAIN.fullmatch(text) and not _WORDS.fullmatch(text)
    style = "|" if "\n" in text else None if is_plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


def yaml_of(*documents: Mapping[str, Any]) -> str:
    """Return one document, or several in one file."""
    return dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf).removeprefix(
        "---\n"
    )
