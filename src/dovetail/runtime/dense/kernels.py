"""Dense optimizers as serial kernels that let other threads run.

Each changes one flat float32 vector, and the vectors of state beside it, in place. The gradient used is

    g = clip(gradient scale, -limit, limit)

with a limit of infinity where nothing is clipped; a gradient that is not a number stays one. All numbers that are not
vectors are float32, all arithmetic is in the order written, and divisions follow IEEE 754 without a check for zero, so
that the loops run on vectors. The formulas are those of `torch.optim`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_ONE = np.float32(1)


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _used(gradient, scale, limit):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return a gradient scaled and clipped."""
    g = gradient * scale
    return limit if g > limit else (-limit if g < -limit else g)


@njit(cache=True, nogil=True, error_model="numpy")
def sgd(values, gradients, scale, limit, rate):  # type: ignore[no-untyped-def]  # pragma: no cover
    """W -= rate g."""
    for i in range(len(values)):
        values[i] -= rate * _used(gradients[i], scale, limit)


@njit(cache=True, nogil=True, error_model="numpy")
def momentum(values, gradients, velocity, scale, limit, rate, kept):  # type: ignore[no-untyped-def]  # pragma: no cover
    """V = kept v + g; w -= rate v."""
    for i in range(len(values)):
        v = kept * velocity[i] + _used(gradients[i], scale, limit)
        velocity[i] = v
        values[i] -= rate * v


@njit(cache=True, nogil=True, error_model="numpy")
def adagrad(values, gradients, squares, scale, limit, rate, epsilon):  # type: ignore[no-untyped-def]  # pragma: no cover
    """S += g g; w -= rate g / (sqrt(s) + epsilon)."""
    for i in range(len(values)):
        g = _used(gradients[i], scale, limit)
        s = squares[i] + g * g
        squares[i] = s
        values[i] -= rate * g / (np.sqrt(s) + epsilon)


@njit(cache=True, nogil=True, error_model="numpy")
def adam(  # type: ignore[no-untyped-def]  # pragma: no cover
    values, gradients, first, second, scale, limit, rate, left1, left2, epsilon, root, kept
):
    """Adam with decoupled decay; none where kept = 1.

        w = kept w
        m += left1 (g - m)
        v = (1 - left2) v + left2 g g
        w -= rate m / (sqrt(v) root + epsilon)

    The caller gives left = 1 - beta, rate / (1 - beta1 ** t) as `rate` and 1 / sqrt(1 - beta2 ** t) as `root`.
    """
    held2 = _ONE - left2
    for i in range(len(values)):
        g = _used(gradients[i], scale, limit)
        m = first[i] + left1 * (g - first[i])
        v = held2 * second[i] + left2 * (g * g)
        first[i] = m
        second[i] = v
        values[i] = kept * values[i] - rate * m / (np.sqrt(v) * root + epsilon)


@njit(cache=True, nogil=True, error_model="numpy")
def add_into(total, part):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Total += part; both are as long as `part`, which may be read-only."""
    for i in range(len(part)):
        total[i] += part[i]


@njit(cache=True, nogil=True, error_model="numpy")
def sum_of_squares(vector):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the sum of squares in float64, in eight running sums: one alone would wait for each addition."""
    a = b = c = d = e = f = g = h = 0.0
    whole = len(vector) - len(vector) % 8
    for i in range(0, whole, 8):
        a += np.float64(vector[i]) * np.float64(vector[i])
        b += np.float64(vector[i + 1]) * np.float64(vector[i + 1])
        c += np.float64(vector[i + 2]) * np.float64(vector[i + 2])
        d += np.float64(vector[i + 3]) * np.float64(vector[i + 3])
        e += np.float64(vector[i + 4]) * np.float64(vector[i + 4])
        f += np.float64(vector[i + 5]) * np.float64(vector[i + 5])
        g += np.float64(vector[i + 6]) * np.float64(vector[i + 6])
        h += np.float64(vector[i + 7]) * np.float64(vector[i + 7])
    for i in range(whole, len(vector)):
        a += np.float64(vector[i]) * np.float64(vector[i])
    return ((a + b) + (c + d)) + ((e + f) + (g + h))
