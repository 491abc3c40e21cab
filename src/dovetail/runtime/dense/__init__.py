"""Dense parameters: one vector, its optimizers, and the kernels they run on."""
