"""Numbers in fewer bits for slow links: codecs, payloads, and what a sender keeps back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.codecs.codec import Codec
    from dovetail.codecs.payload import pack, unpack
    from dovetail.codecs.registry import WIDTHS, codec_of

__all__ = ["WIDTHS", "Codec", "codec_of", "pack", "unpack"]

__getattr__ = on_demand(__name__)
