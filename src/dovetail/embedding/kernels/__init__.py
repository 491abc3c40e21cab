"""Loops over rows, compiled: each takes the arrays of an index and of tiers, and Python is not in it."""
