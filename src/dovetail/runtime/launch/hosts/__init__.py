"""A run on several machines: which process goes where, and how a launcher starts, watches and ends it there."""
