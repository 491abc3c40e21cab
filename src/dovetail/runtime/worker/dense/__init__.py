"""How the dense parameters of all workers stay the same: in buckets through servers, or by a ring."""
