"""What the sites of an exchange have learnt, as one change: the same numbers at every site.

Dense parameters: the mean of the sites' changes, weighted by samples; the outer optimizer takes it as its gradient.

Rows, by what updates them:

- SGD is linear: a row's change is the mean over all sites of the exchange, weighted by samples, and zero for a site
  that did not touch it. One step a round is then one step on the union of the batches.
- Adagrad and Adam divide by the size of gradients: a site's steps are as long as those of one site with all samples,
  and not shorter because it has fewer of them. The sites' changes are added up. For rare rows that is what one site
  does, whose steps touch them as often as all sites' together. For rows of every step theory wants something between
  the mean and the sum: gradients are mostly noise there, and over K times the samples it is smaller by sqrt(K), so one
  site's steps come to sqrt(K) times the mean. The sum ended closer to one site (`benchmarks/site_quality.py`).

Where gradients are summed over samples and not averaged (`reduction = "sum"`), SGD's changes are summed as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.runtime.sites.key_index import Keys
from dovetail.runtime.sites.progress import Floats, RowDeltas
from dovetail.runtime.sites.row_kernels import merge_rows


@dataclass(frozen=True, slots=True)
class Part:
    """What one site brings to an exchange, as everyone reads it."""

    samples: int
    dense: Floats
    tables: Sequence[RowDeltas]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How changes are combined: whether rows' updates are linear, and whether sums over samples are wanted."""

    linear_rows: bool
    sums: bool


def weights(parts: Sequence[Part], rule: Rule) -> list[np.float32]:
    """Return what the sites' changes are multiplied by before they are added."""
    if rule.sums:
        return [np.float32(1)] * len(parts)
    total = sum(part.samples for part in parts)
    return [np.float32(part.samples / total) if total else np.float32(1 / len(parts)) for part in parts]


def combined_dense(parts: Sequence[Part], rule: Rule) -> Floats:
    """Return the change of dense parameters."""
    total = np.zeros_like(parts[0].dense)
    for part, weight in zip(parts, weights(parts, rule), strict=True):
        total += weight * part.dense
    return total


def combined_rows(parts: Sequence[Part], table: int, rule: Rule) -> tuple[Keys, Floats]:
    """Return the change of a table: rising keys, and how much each row changes."""
    deltas = [part.tables[table] for part in parts]
    keys: Keys = deltas[0].keys[:0]
    total: Floats = deltas[0].values[:0]
    scales = weights(parts, rule) if rule.linear_rows else [np.float32(1)] * len(parts)
    for each, scale in zip(deltas, scales, strict=True):
        keys, total = merge_rows(keys, total, each.keys, each.values, scale)
    return keys, total
