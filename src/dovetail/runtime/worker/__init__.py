"""A worker: fetches parameters, computes gradients, sends them, all at the same time."""
