"""A model cut into stages: the first stage's pipeline, the worker of a later stage, and what travels between them."""
