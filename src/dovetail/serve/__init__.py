"""A cluster that is shared for real: a daemon that takes jobs, asks a policy, and starts, resizes and stops them."""
