"""Hosts that are nodes of a Ray cluster."""
