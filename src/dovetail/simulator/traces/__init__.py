"""Workloads from elsewhere: other people's traces, and ones made up from a seed."""
