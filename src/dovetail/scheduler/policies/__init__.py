"""One policy a file; `dovetail.scheduler.registry` knows them by name."""
