"""How a worker says, key by key, what it keeps of a server's rows: one byte each, beside the keys of a pull.

0        nothing: send the row
1 + n    the row as it was n steps before the one that is asked for: send it if a step has changed it since
255      the row, as new as this worker needs it: do not send it, whatever happened to it
"""

from __future__ import annotations

NOT_KEPT = 0
MOST_STEPS = 2
"""Older rows are not offered: a server knows what its last step changed, and nothing of those before."""
NEW_ENOUGH = 255
