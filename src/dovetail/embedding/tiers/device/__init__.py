"""The device tier: rows in the memory of a GPU, batches found and brought there ahead, and steps on them."""
