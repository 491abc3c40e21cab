"""Sharing a cluster between jobs: policies that do not know who drives them."""
