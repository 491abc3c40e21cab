"""Training in one process, or in each of a group: one loop, with rows in host memory, on a device or in shards."""
