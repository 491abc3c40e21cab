"""Layouts on machines: one process, stages over servers, and what was measured as a whole; all of them asked."""
