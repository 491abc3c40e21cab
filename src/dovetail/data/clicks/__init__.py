"""Click logs made on demand: real skew, a known truth, and so a known best result."""

from dovetail.data.clicks.matches import Matches
from dovetail.data.clicks.source import Clicks

__all__ = ["Clicks", "Matches"]
