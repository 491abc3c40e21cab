"""Gradients of single samples: their norms, and their sum with each cut to a norm, most of them never written out."""
