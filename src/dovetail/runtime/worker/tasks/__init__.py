"""The tasks of a worker: what it was assigned, how far it is, when one is whole, and what is told of it."""
