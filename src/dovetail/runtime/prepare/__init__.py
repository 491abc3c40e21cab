"""Made ready: from a run file to a run's folder, its blueprint, keys and first checkpoint, under a lock."""
