"""Quantities as people write and read them."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from dovetail.errors import SpecError

SECONDS_PER = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(s|min|m|h|d)")


def parse_duration_s(text: str) -> float:
    """Return the seconds in `90s`, `30m`, `6h`, `2d` or a run of them such as `1h30m`."""
    compact = text.replace(" ", "").lower()
    parts = _DURATION_PART.findall(compact)
    seconds = sum(float(number) * SECONDS_PER[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != compact or not 0 < seconds < math.inf:
        raise SpecError(f"`{text}` is not a duration above zero", hint="write it like 90s, 30m, 6h, 2d or 1h30m")
    return seconds


def format_duration(seconds: float) -> str:
    """Return seconds in the unit a person would pick: `850 us`, `12.3 ms`, `4.1 s`, `35 min`, `6.4 h`, `3.2 d`."""
    if seconds == 0:
        return "0 s"
    for limit, scale, unit in (
        (0.9995e-3, 1e-6, "us"),  # from here on three figures round to 1 ms, and below to 1 s
        (0.9995, 1e-3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 60.0, "min"),
        (172800.0, 3600.0, "h"),
    ):
        if seconds < limit:
            return f"{seconds / scale:.3g} {unit}"
    days = seconds / 86400.0
    return f"{days:.3g} d" if days < 999.5 else f"{days:,.0f} d"


def format_count(number: float) -> str:
    """Return a count in up to four figures: `950`, `12.3 k`, `4.56 M`, `15.7 T`."""
    for scale, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= scale:
            return f"{number / scale:.4g}{unit}"
    return f"{number:.4g}"


def format_usd(amount: float) -> str:
    """Return money with cents, or with four significant figures below one dollar."""
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.4g}"


def format_bytes(count: float) -> str:
    """Return bytes in decimal units, as data sheets have them: `950 B`, `12.3 MB`, `4.56 GB`."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.3g} B"


def format_plain(number: float) -> str:
    """Return six significant figures without an exponent, as one would type them into a file: `3959780`, `0.04`."""
    return f"{Decimal(f'{number:.6g}'):f}" if math.isfinite(number) else str(number)
