"""Rows that nobody asks for any more are deleted, each leaving a tombstone for the next checkpoint."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.saving import Saver
from dovetail.embedding.store import Store
from dovetail.embedding.tier import MOST_AT_ONCE


def expire(store: Store, saver: Saver, *, max_age_steps: int | None, min_count: int | None) -> NDArray[np.int64]:
    """Delete rows not looked up in the last `max_age_steps` updates, or counted less than `min_count`; return keys."""
    step = store.clock.step
    before = -1 if max_age_steps is None else step - max_age_steps
    store.anywhere.note_facts_above()
    expired = store.facts.expired(before, -1 if min_count is None else min_count)
    for start in range(0, len(expired), MOST_AT_ONCE):
        some = expired[start : start + MOST_AT_ONCE]
        saver.bury(some)
        store.anywhere.remove(some)
    if store.key_log is not None:
        store.key_log.add(step, "expired", expired)
    return expired
