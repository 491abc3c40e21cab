"""A parameter server: embedding rows in tables, dense parameters in one vector, optimizers beside them."""
