"""Computing: a model whose tables lie elsewhere, forward and backward on one micro-batch."""
