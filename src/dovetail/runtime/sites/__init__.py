"""Exchanging between sites: each trains by itself, and every so many steps they bring each other up to date."""
