"""The colours of charts: ink, paper, and one colour a type."""

from __future__ import annotations

from matplotlib.colors import to_rgb

PAPER = "#fdfdfc"
INK = "#1b1f26"
MUTED = "#5f6773"
QUIET = "#a9b1bc"
FAINT = "#d5d9df"
ACCENT = "#0b6fb5"
ALARM = "#b3261e"
"""The colours of everything that is no type."""

_COLOUR_LIST = (
    "#0072b2 #e69f00 #009e73 #cc79a7 #56b4e9 #d55e00 #f0e442 #4a2a7f "
    "#710000 #8ed9aa #7b4c5e #bdd9ff #7184ec #974200 #68004c #55c671 "
    "#2f4caa #97bdc6 #a1428e #84684c #97ec84 #554239 #683971 #b3e3d9 "
    "#aa7bc6 #718e42 #2f8471 #5ebd97 #d9c64c #4c68d0 #68aa5e #8ec6ff "
    "#aa6897 #68a1ff #8e1c00 #685539 #c68e00 #8ea1c6 #1c6884 #422f5e "
    "#55428e #bd4c1c #8e71d0 #68f6b3 #712f55 #7bd984 #97bd4c #4c2f2f "
    "#bd8484 #84d0e3 #392f97 #8e8ee3 #f697b3 #e38ee3 #974caa #ffd068 "
    "#ff8497 #4c55bd #c64c5e #5e421c #26a1aa #aad0c6 #d95e42 #8eaa7b"
)
TYPE_COLOURS = tuple(_COLOUR_LIST.split())
"""The colours of types. The first seven are Okabe and Ito's, the eighth a violet in place of their black. Each further
one, among colours neither pale, dark nor glaring, is the farthest in OKLab from all before it, as people with full
colour vision, without green cones (deuteranopia) and without red cones (protanopia) see them."""


def type_colour(position: int) -> str:
    """Return the colour of the type that stands at `position` in its problem; the first 64 differ."""
    return TYPE_COLOURS[position % len(TYPE_COLOURS)]


def ink_on(colour: str) -> str:
    """Return black or white, whichever stands out more on `colour` (the contrast of WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#101010" if luminance > 0.179 else "#ffffff"
