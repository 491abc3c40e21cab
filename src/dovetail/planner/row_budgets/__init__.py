"""Embeddings of which a unit keeps only some rows: how much memory those are given."""
