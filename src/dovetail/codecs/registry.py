"""The codecs by the numbers that payloads and run files know them by."""

from __future__ import annotations

from dovetail.codecs.bfloat16 import BFloat16
from dovetail.codecs.blocks import BLOCK
from dovetail.codecs.codec import Codec
from dovetail.codecs.levels import Levels
from dovetail.codecs.one_bit import OneBit
from dovetail.codecs.squares import Squares
from dovetail.codecs.top_k import TopK
from dovetail.codecs.two_bits import TwoBits

WIDTHS = (32, 16, 8, 4, 2, 1)
"""What can be asked for, in bits a number; 32 is no codec at all."""


def codec_of(bits: int, *, block: int = BLOCK) -> Codec | None:
    """Return the codec of a width with a scale for every `block` numbers; None for 32 bits."""
    if bits == 32:
        return None
    if bits == 16:
        return BFloat16()
    if bits == 8:
        return Levels(block=block)
    if bits == 4:
        return Squares(block=block)
    if bits == 2:
        return TwoBits(block=block)
    if bits == 1:
        return OneBit(block=block)
    raise ValueError(f"there is no codec of {bits} bits, known are {', '.join(map(str, WIDTHS))}")


def codec_numbered(number: int, *, block: int, part: float) -> Codec | None:
    """Return the codec that a payload names; None where there is none of that number."""
    bits = {1: 16, 2: 8, 7: 4, 4: 2, 5: 1}.get(number)  # 3 were even levels of four bits, and 6 is top-k
    if bits is not None:
        return codec_of(bits, block=block)
    return TopK(part) if number == TopK.number else None
