"""Arrays inside compiled kernels that nobody counts references to."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic


def _borrowed(_typing_context: Any, array: Any) -> Any:
    """Return the same array without its owner, which has to outlive what the kernel does with it.

    Numba counts references with atomic instructions, at every call of a function that takes arrays: several times what
    the arithmetic of a stage costs. An array without an owner is not counted.
    """
    if not isinstance(array, types.Array):
        return None

    def make(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        view = context.make_array(array)(context, builder, value=arguments[0])
        view.meminfo = view.meminfo.type(None)
        view.parent = view.parent.type(None)
        return view._getvalue()

    return array(array), make


borrowed: Any = intrinsic(_borrowed)
