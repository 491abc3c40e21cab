"""Numbers in fewer bits for slow links: codecs, payloads, and what a sender keeps back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.codecs.codec import Codec
    from dovetail.codecs.ddp import DDPState, ddp_hook
    from dovetail.codecs.payload import pack, unpack
    from dovetail.codecs.registry import WIDTHS, codec_of
    from dovetail.codecs.top_k import TopK

__all__ = ["WIDTHS", "Codec", "DDPState", "TopK", "codec_of", "ddp_hook", "pack", "unpack"]

__getattr__, __dir__ = on_demand(__name__)
