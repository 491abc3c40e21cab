"""Clipping the norm of a gradient, wherever its parts lie."""

from __future__ import annotations

import math


def clipped_scale(scale: float, square: float, limit: float) -> float:
    """Return the scale with which a gradient whose sum of squares is `square` has a norm of at most `limit`."""
    return scale * min(1.0, limit / (math.sqrt(square) * scale + 1e-6))
