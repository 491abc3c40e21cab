"""Training in one process: with tables on a device, or step by step to look for faults."""
