"""Promises about single samples: what they cost, the draws they hang on, and what a private step owes."""
