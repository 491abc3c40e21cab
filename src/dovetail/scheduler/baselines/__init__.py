"""The policies that the default is compared with, one a file; `dovetail.scheduler.registry` knows them by name."""
