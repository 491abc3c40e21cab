"""Dovetail trains deep models on machines that do not match."""

__version__ = "0.1.0"
