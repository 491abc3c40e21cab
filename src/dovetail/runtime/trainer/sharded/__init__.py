"""Rows over the workers of a run: each owns a part of them, and all compute a part of every batch."""
