"""Checkpoints of a table: their files, saved while training goes on, loaded into any number of shards, looked into."""
