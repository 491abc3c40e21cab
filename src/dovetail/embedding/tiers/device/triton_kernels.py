"""The device tier's kernels in Triton: the functions of `torch_kernels`, on CUDA, in one launch each."""

from dovetail.embedding.tiers.device.triton_index import erase, find, insert, look, place, settle
from dovetail.embedding.tiers.device.triton_rows import RULES, fill_first, gather, step_sums, sum_rows, touch

__all__ = [
    "RULES",
    "erase",
    "fill_first",
    "find",
    "gather",
    "insert",
    "look",
    "place",
    "settle",
    "step_sums",
    "sum_rows",
    "touch",
]
