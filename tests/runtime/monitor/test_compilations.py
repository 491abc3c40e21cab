"""What compilers of this process do is counted: by functions that they really compile."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor

from dovetail.runtime.monitor.compilations import watched_compilations


def test_a_numba_kernel_counts_when_it_compiles_and_not_when_it_runs_again():
    @njit
    def doubled(values):
        return values * 2

    with watched_compilations() as found:
        before = found.look()
        doubled(np.ones(3))
        first = found.look()
        doubled(np.ones(5))
        again = found.look()
        doubled(np.ones(3, dtype=np.int64))

    assert before == 0
    assert first > 0
    assert again == first
    assert found.look() > first  # other types are another kernel


def test_what_compiles_when_nobody_watches_is_not_counted():
    @njit
    def tripled(values):
        return values * 3

    with watched_compilations() as found:
        pass
    tripled(np.ones(3))

    assert found.count == 0


@pytest.mark.slow
def test_a_compiled_module_counts_when_it_compiles():
    def squared(values: Tensor) -> Tensor:
        return values * values + 1

    compiled = torch.compile(squared, backend="eager")
    with watched_compilations() as found:
        compiled(torch.ones(3))
        first = found.look()
        compiled(torch.ones(3))

    assert first > 0
    assert found.count == first
