"""Row optimizers as serial kernels that let other threads run.

Each takes the rows (values, then optimizer state), which of them to change, one gradient a row, and the settings as
float32 numbers. Divisions follow IEEE 754 without a check for zero, so that the loops run on vectors. All arithmetic is
in float32, in the order written: a plain NumPy twin gives the same bits.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.embedding.raw_memory import AHEAD, hint_row

_ONE = np.float32(1)
_ZERO = np.float32(0)


@njit(cache=True, nogil=True, error_model="numpy")
def put(rows, slots, values, width, _settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """W = value; the optimizer's state stays."""
    for i in range(len(slots)):
        row = rows[slots[i]]
        for j in range(width):
            row[j] = values[i, j]


@njit(cache=True, nogil=True, error_model="numpy")
def sgd(rows, slots, gradients, width, settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """W -= rate g."""
    rate = settings[0]
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            hint_row(rows, slots[i + AHEAD], rows.shape[1])
        row = rows[slots[i]]
        for j in range(width):
            row[j] -= rate * gradients[i, j]


@njit(cache=True, nogil=True, error_model="numpy")
def adagrad(rows, slots, gradients, width, settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """S += g g; w -= rate g / (sqrt(s) + epsilon)."""
    rate, epsilon = settings[0], settings[1]
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            hint_row(rows, slots[i + AHEAD], rows.shape[1])
        row = rows[slots[i]]
        for j in range(width):
            g = gradients[i, j]
            total = row[width + j] + g * g
            row[width + j] = total
            row[j] -= rate * g / (np.sqrt(total) + epsilon)


@njit(cache=True, nogil=True, error_model="numpy")
def row_wise_adagrad(rows, slots, gradients, width, settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """S += sum(g g) / width; w -= rate g / (sqrt(s) + epsilon): one number of state a row."""
    rate, epsilon = settings[0], settings[1]
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            hint_row(rows, slots[i + AHEAD], rows.shape[1])
        row = rows[slots[i]]
        square = _ZERO
        for j in range(width):
            square += gradients[i, j] * gradients[i, j]
        total = row[width] + square / np.float32(width)
        row[width] = total
        divisor = np.sqrt(total) + epsilon
        for j in range(width):
            row[j] -= rate * gradients[i, j] / divisor


@njit(cache=True, nogil=True, error_model="numpy")
def adam(rows, slots, gradients, width, settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Lazy Adam: a row's moments and powers of beta move only when the row has a gradient."""
    rate, beta1, beta2, epsilon = settings[0], settings[1], settings[2], settings[3]
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            hint_row(rows, slots[i + AHEAD], rows.shape[1])
        row = rows[slots[i]]
        # The state holds 1 - beta ** t, so that a first state of zeros is t = 0.
        left1 = row[3 * width] * beta1 + (_ONE - beta1)
        left2 = row[3 * width + 1] * beta2 + (_ONE - beta2)
        row[3 * width], row[3 * width + 1] = left1, left2
        for j in range(width):
            g = gradients[i, j]
            first = beta1 * row[width + j] + (_ONE - beta1) * g
            second = beta2 * row[2 * width + j] + (_ONE - beta2) * (g * g)
            row[width + j], row[2 * width + j] = first, second
            row[j] -= rate * (first / left1) / (np.sqrt(second / left2) + epsilon)


@njit(cache=True, nogil=True, error_model="numpy")
def ftrl(rows, slots, gradients, width, settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """FTRL-Proximal (McMahan et al., 2013).

    w = 0 where |z| <= l1, else -(z - sign(z) l1) / ((beta + sqrt(n)) / rate + l2).
    """
    rate, beta, l1, l2 = settings[0], settings[1], settings[2], settings[3]
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            hint_row(rows, slots[i + AHEAD], rows.shape[1])
        row = rows[slots[i]]
        for j in range(width):
            g = gradients[i, j]
            before = row[2 * width + j]
            after = before + g * g
            root = np.sqrt(after)
            z = row[width + j] + (g - (root - np.sqrt(before)) / rate * row[j])
            row[width + j], row[2 * width + j] = z, after
            if abs(z) <= l1:
                row[j] = _ZERO
            else:
                row[j] = -(z - (l1 if z > 0 else -l1)) / ((beta + root) / rate + l2)


@njit(cache=True, nogil=True, error_model="numpy")
def limit_norms(rows, slots, _, width, settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """W *= max_norm / (norm + 1e-7) where the norm is above; the gradients are for the step that follows."""
    most, kind = settings[0], settings[1]
    for i in range(len(slots)):
        row = rows[slots[i]]
        norm = 0.0
        for j in range(width):
            size = abs(np.float64(row[j]))
            if kind == np.float32(2):
                norm += size * size
            elif np.isinf(kind):
                norm = max(norm, size)
            else:
                norm += size ** np.float64(kind)
        if kind == np.float32(2):
            norm = np.sqrt(norm)
        elif not np.isinf(kind):
            norm = norm ** (1.0 / np.float64(kind))
        if norm > most:
            scale = np.float32(most / (norm + 1e-7))
            for j in range(width):
                row[j] *= scale
