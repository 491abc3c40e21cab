"""A table that is a plain dict, and row optimizers in plain NumPy: what the real ones have to equal, bit by bit."""

from __future__ import annotations

import copy

import numpy as np

from dovetail.embedding import FTRL, SGD, Adagrad, Adam, AdamPerRow, RowWiseAdagrad

MASK = (1 << 64) - 1
F = np.float32


def mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def first_row(key: int, width: int, seed: int, scale: float) -> np.ndarray:
    golden = 0x9E3779B97F4A7C15
    stream = mix((mix((seed & MASK) ^ golden) + mix(key & MASK)) & MASK)
    words = [mix((stream + (column + 1) * golden) & MASK) for column in range(width)]
    return np.array([((word >> 40) * 2.0**-23 - 1.0) * scale for word in words], dtype=F)


def step_row(optimizer, row: np.ndarray, g: np.ndarray, step: int) -> np.ndarray:
    """Return the row after the table's step of that number, in float32 vector arithmetic."""
    w = len(g)
    values, state = row[:w].copy(), row[w:].copy()
    rate = F(optimizer.learning_rate)
    match optimizer:
        case SGD():
            values -= rate * g
        case Adagrad():
            state += g * g
            values -= rate * g / (np.sqrt(state) + F(optimizer.epsilon))
        case RowWiseAdagrad():
            square = F(0)
            for number in g:
                square = F(square + number * number)
            state[0] += square / F(w)
            values -= rate * g / (np.sqrt(state[0]) + F(optimizer.epsilon))
        case Adam():
            b1, b2 = optimizer.beta1, optimizer.beta2
            rate = F(optimizer.learning_rate * (1 - b2**step) ** 0.5 / (1 - b1**step))
            state[:w] += (g - state[:w]) * F(1 - b1)
            state[w:] += (g * g - state[w:]) * F(1 - b2)
            values -= rate * (state[:w] / (np.sqrt(state[w:]) + F(optimizer.epsilon)))
        case AdamPerRow():
            b1, b2 = F(optimizer.beta1), F(optimizer.beta2)
            state[2 * w] = state[2 * w] * b1 + (F(1) - b1)
            state[2 * w + 1] = state[2 * w + 1] * b2 + (F(1) - b2)
            state[:w] = b1 * state[:w] + (F(1) - b1) * g
            state[w : 2 * w] = b2 * state[w : 2 * w] + (F(1) - b2) * (g * g)
            hat1, hat2 = state[:w] / state[2 * w], state[w : 2 * w] / state[2 * w + 1]
            values -= rate * hat1 / (np.sqrt(hat2) + F(optimizer.epsilon))
        case FTRL():
            beta, l1, l2 = F(optimizer.beta), F(optimizer.l1), F(optimizer.l2)
            z, n = state[:w], state[w:]
            after = n + g * g
            z = z + (g - (np.sqrt(after) - np.sqrt(n)) / rate * values)
            state = np.concatenate([z, after])
            full = -(z - np.where(z > 0, l1, -l1)) / ((beta + np.sqrt(after)) / rate + l2)
            values = np.where(np.abs(z) <= l1, F(0), full)
    return np.concatenate([values, state]).astype(F)


class DictTable:
    """The same table in twenty lines, without tiers."""

    def __init__(self, *, width, optimizer, seed=0, scale=None, ageing_lookups=1 << 60):
        self.width, self.optimizer, self.seed = width, optimizer, seed
        self.scale = 1 / 3 / width**0.5 if scale is None else scale
        self.rows, self.seen, self.counts = {}, {}, {}
        self.step, self.counted, self.period = 0, 0, ageing_lookups
        self.changed = set()

    def first(self, key):
        state = np.full(self.optimizer.state_width(self.width), self.optimizer.first_state, dtype=F)
        return np.concatenate([first_row(key, self.width, self.seed, self.scale), state])

    def lookup(self, keys, insert=True):
        for key in dict.fromkeys(keys):
            if key not in self.rows and insert:
                self.rows[key], self.counts[key] = self.first(key), 0
                self.changed.add(key)
            if key in self.rows:
                self.seen[key] = self.step
                self.counts[key] = min(self.counts[key] + 1, 1023)
                self.counted += 1
        values = [self.rows[key] if key in self.rows else self.first(key) for key in keys]
        if self.counted >= self.period:
            self.counted -= self.period
            self.counts = {key: count >> 1 for key, count in self.counts.items()}
        return np.array([value[: self.width] for value in values], dtype=F).reshape(len(keys), self.width)

    def update(self, keys, gradients):
        sums = {}
        for key, gradient in zip(keys, gradients, strict=True):
            sums[key] = sums[key] + gradient if key in sums else gradient
        for key, total in sums.items():
            if key not in self.rows:
                self.rows[key], self.counts[key], self.seen[key] = self.first(key), 0, self.step
            self.rows[key] = step_row(self.optimizer, self.rows[key], total, self.step + 1)
        self.changed |= sums.keys()
        self.step += 1

    def expire(self, max_age_steps=None, min_count=None):
        gone = [
            key
            for key in self.rows
            if (max_age_steps is not None and self.seen[key] < self.step - max_age_steps)
            or (min_count is not None and self.counts[key] < min_count)
        ]
        for key in gone:
            del self.rows[key], self.seen[key], self.counts[key]
        return sorted(gone)


def saved_copy(model, before=None):
    """Return what a checkpoint holds; a delta after `before` has nothing new on rows that were only looked at."""
    saved = copy.deepcopy(model)
    if before is not None:
        for key in model.rows.keys() - model.changed:
            saved.counts[key], saved.seen[key] = before.counts[key], before.seen[key]
    model.changed, saved.changed, saved.counted = set(), set(), 0
    return saved


def assert_same(table, model) -> None:
    """Every row, its state and its count are those of the dict, to the bit."""
    keys = sorted(model.rows)
    assert sorted(table.keys().tolist()) == keys
    if not keys:
        return
    expected = np.array([model.rows[key] for key in keys], dtype=F)
    assert table.rows(keys).tobytes() == expected.tobytes()
    assert table.counts(keys).tolist() == [model.counts[key] for key in keys]
