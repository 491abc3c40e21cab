"""Masked sums: servers add up workers' gradients that only make sense once all of them are added.

`fixed_point` has gradients as whole numbers modulo 2^32, `masks` what hides them and cancels in the sum.
"""
