"""Training on unlike workers: a coordinator, parameter servers and workers, in real processes."""
