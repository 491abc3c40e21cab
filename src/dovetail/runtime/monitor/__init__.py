"""Watching a run: callbacks of a program, the table on a terminal, loggers, and a page for Prometheus."""
