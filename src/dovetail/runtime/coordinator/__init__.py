"""The coordinator: who is there, who computes what, when a step counts, what is kept."""
