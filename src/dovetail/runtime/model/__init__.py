"""What a run's model is made of: how it is built, which of its parameters are tables, and which are dense."""
