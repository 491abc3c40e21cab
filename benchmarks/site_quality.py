"""How well several sites learn, beside one site with all samples: what of the gap is due to rows, what to dense ones.

    python benchmarks/site_quality.py
    python benchmarks/site_quality.py --sites 3 --every 8 --optimizer adam --rate 0.001 --sides joined,union

CTR-DNN with 26 slots and layers of 400 x 3 on the samples of `benchmarks/sites.py`. Sites are copies in one process:
real optimizers, rounds, codecs and combination, no sockets and no clock, so that every run gives the same numbers. An
exchange arrives half a round after its cut. Sides:

- joined: as sites train.
- nesterov: with an outer optimizer of rate 0.7 and momentum 0.9.
- mean: rows change by the mean over sites.
- union: by the sum, times the part of steps in which the union of batches would touch a row, over the sum of the parts
  in which each site did: the sum for rare rows, the mean for rows of every step.
- one-table: all sites step one table by the gradient of the union, and only dense parameters are exchanged.
- one-dense: the other way round.

The largest gap of the first side's AUC to that of one site comes last.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from dovetail.data.load import load_data
from dovetail.embedding.hashing import first_values
from dovetail.embedding.row_optimizer import make_row_optimizer
from dovetail.models.embedding import SlotEmbedding, rows_elsewhere
from dovetail.models.load import load_model
from dovetail.models.metrics import make_metric
from dovetail.runtime.blueprint import table_seed
from dovetail.runtime.dense.optimizer import make_dense_optimizer
from dovetail.runtime.sites.changes import (
    DenseProgress,
    Floats,
    RowProgress,
    Rule,
    SiteChange,
    combined_dense,
    combined_rows,
)
from dovetail.runtime.sites.messages import RoundHead
from dovetail.runtime.sites.rounds import Shapes, decode, encode

NUM_SLOTS, WIDTH, HIDDEN, EVALUATED = 26, 10, [400, 400, 400], 4096
Keys = NDArray[np.int64]


@dataclass(frozen=True)
class Side:
    """How sites are joined."""

    rows: str = "sum"
    one_table: bool = False
    one_dense: bool = False
    rate: float = 1.0
    momentum: float = 0.0


SIDES = {
    "joined": Side(),
    "nesterov": Side(rate=0.7, momentum=0.9),
    "mean": Side(rows="mean"),
    "union": Side(rows="union"),
    "one-table": Side(one_table=True),
    "one-dense": Side(one_dense=True),
}


class LocalRows:
    """Rows and their optimizer's state in one array: as a model looks them up, and as exchanges see them."""

    def __init__(self, rows: Floats) -> None:
        """Take the array, which steps change in place."""
        self.rows = rows
        self.keys, self.leaf = np.empty(0, dtype=np.int64), torch.empty(0)

    def look_up(self, keys: Tensor, offsets: Tensor, mode: str) -> Tensor:
        """Return one pooled vector a bag; `leaf` collects the gradients of the distinct `keys`."""
        self.keys, places = np.unique(keys.numpy(), return_inverse=True)
        self.leaf = torch.from_numpy(self.read(self.keys)).requires_grad_(torch.is_grad_enabled())
        return embedding_bag(torch.from_numpy(places), self.leaf, offsets, mode=mode, include_last_offset=True)

    def read(self, keys: Keys) -> Floats:
        """Return values."""
        return self.rows[keys, :WIDTH]

    def write(self, keys: Keys, values: Floats) -> None:
        """Change values."""
        self.rows[keys, :WIDTH] = values


class SiteCopy:
    """What one site has."""

    def __init__(self, task: Task) -> None:
        """Start where all start."""
        self.table, self.dense = LocalRows(task.first_rows.copy()), task.first_dense.copy()
        self.state = task.dense_optimizer.first_state(len(self.dense))
        self.rows_ahead, self.dense_ahead = RowProgress(WIDTH), DenseProgress(self.dense)
        self.touches = np.zeros(len(task.first_rows), dtype=np.int64)


class Task:
    """A model, its samples and its optimizers."""

    def __init__(self, arguments: argparse.Namespace, seed: int) -> None:
        """Make all from a seed."""
        self.batch, self.samples, self.evaluate = arguments.batch, arguments.samples, arguments.evaluate
        self.source = load_data("clicks", num_slots=NUM_SLOTS, rows_per_slot=arguments.rows, seed=seed)
        num_rows, schema = NUM_SLOTS * arguments.rows, self.source.schema
        with rows_elsewhere():
            self.model = load_model("ctr-dnn", schema=schema, seed=seed, num_rows=num_rows, width=WIDTH, hidden=HIDDEN)
        self.embedding = next(each for each in self.model.modules() if isinstance(each, SlotEmbedding))
        self.parameters = [each for each in self.model.parameters() if not each.is_meta]
        self.first_dense: Floats = torch.cat([each.detach().reshape(-1) for each in self.parameters]).numpy()
        self.row_optimizer = make_row_optimizer(arguments.optimizer, learning_rate=arguments.rate)
        self.dense_optimizer = make_dense_optimizer(arguments.optimizer, learning_rate=arguments.rate)
        values = first_values(np.arange(num_rows), width=WIDTH, seed=table_seed(seed, 0), scale=1 / 3 / WIDTH**0.5)
        state = np.full((num_rows, self.row_optimizer.state_width(WIDTH)), self.row_optimizer.first_state)
        self.first_rows: Floats = np.concatenate([values, state], axis=1).astype(np.float32)
        self.shapes = Shapes(len(self.first_dense), np.empty(0, dtype=np.int64), [(num_rows, WIDTH)])

    def put(self, site: SiteCopy) -> None:
        """Have the model compute with a site's parameters."""
        self.embedding.row_source = site.table
        parts = torch.from_numpy(site.dense).split([each.numel() for each in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.data, parameter.grad = part.view(parameter.shape), None

    def gradients(self, site: SiteCopy, first: int, last: int) -> tuple[Keys, Floats, Floats]:
        """Return keys, and the gradients of their rows and of dense parameters, summed over samples."""
        self.put(site)
        self.model(self.source.read(first, last)).backward()
        assert site.table.leaf.grad is not None
        dense = torch.cat([each.grad.reshape(-1) for each in self.parameters if each.grad is not None])
        return site.table.keys, site.table.leaf.grad.numpy(), dense.numpy()

    def step_rows(self, site: SiteCopy, keys: Keys, gradients: Floats, samples: int) -> None:
        """Step the rows of keys."""
        site.touches[keys] += 1
        kind = type(self.row_optimizer)
        kind.kernel(site.table.rows, keys, gradients / np.float32(samples), WIDTH, self.row_optimizer.settings())

    def auc(self, site: SiteCopy) -> float:
        """Return the AUC on samples that nobody trained on."""
        self.put(site)
        metric, end = make_metric("auc"), self.samples + self.evaluate
        with torch.no_grad():
            for first in range(self.samples, end, EVALUATED):
                batch = self.source.read(first, min(first + EVALUATED, end))
                metric.update(self.model.predict(batch), batch.labels)
        return metric.value()


def train(task: Task, side: Side, num_sites: int, *, every: int, bits: int) -> float:
    """Train an epoch; return the AUC of what all sites have at the end."""
    sites = [SiteCopy(task) for _ in range(num_sites)]
    for site in sites:
        site.table = sites[0].table if side.one_table else site.table
        site.dense = sites[0].dense if side.one_dense else site.dense
    num_steps = -(-task.samples // task.batch)
    on_their_way: list[tuple[SiteChange, NDArray[np.int64]]] = []
    for step in range(1, num_steps + 1):
        first, last = (step - 1) * task.batch, min(step * task.batch, task.samples)
        bounds = [first + (last - first) * number // num_sites for number in range(num_sites + 1)]
        found = [task.gradients(site, *bounds[number : number + 2]) for number, site in enumerate(sites)]
        step_all(task, side, sites, found, np.diff(bounds).tolist(), step)
        if num_sites == 1:
            continue
        is_cut = step % every == 0 or step == num_steps
        if on_their_way and (is_cut or step % every > every // 2):
            agree(side, sites, on_their_way)
            on_their_way = []
        if is_cut:
            on_their_way = [cut(task, side, site, number, step, bits) for number, site in enumerate(sites)]
    if on_their_way:
        agree(side, sites, on_their_way)
        if not side.one_dense:
            sites[0].dense_ahead.settle(sites[0].dense)
    return task.auc(sites[0])


def step_all(
    task: Task, side: Side, sites: Sequence[SiteCopy], found: Sequence[tuple[Keys, Floats, Floats]],
    samples: Sequence[int], number: int,
) -> None:  # fmt: skip
    """Step every site by its own gradients, and what is one for all by those of the union."""
    if side.one_table:
        keys = np.unique(np.concatenate([each[0] for each in found]))
        total = np.zeros((len(keys), WIDTH), dtype=np.float32)
        for own, rows, _ in found:
            total[np.searchsorted(keys, own)] += rows
        task.step_rows(sites[0], keys, total, sum(samples))
    if side.one_dense:
        dense = np.sum([each[2] for each in found], axis=0)
        step_dense(task, sites[0], dense, number, sum(samples))
    for site, (keys, rows, dense), count in zip(sites, found, samples, strict=True):
        if not side.one_table:
            site.rows_ahead.touch(keys, site.table)
            task.step_rows(site, keys, rows, count)
        if not side.one_dense:
            step_dense(task, site, dense, number, count)


def step_dense(task: Task, site: SiteCopy, gradients: Floats, number: int, samples: int) -> None:
    """Step dense parameters."""
    task.dense_optimizer.step(site.dense, gradients, site.state, step_number=number, scale=1 / samples)


def cut(
    task: Task, side: Side, site: SiteCopy, number: int, step: int, bits: int
) -> tuple[SiteChange, NDArray[np.int64]]:  # fmt: skip
    """Cut a round; return it as others read it, and how often each row was touched."""
    dense = np.zeros_like(site.dense) if side.one_dense else site.dense_ahead.rest(site.dense)
    arrays = encode(dense, [site.rows_ahead.rest(site.table)], task.shapes, bits=bits, seed=(number << 40) + step)
    head = RoundHead(site=number, round=1, step=step, steps=1, samples=1, bits=bits)
    part = decode(head, arrays, task.shapes, who=f"site {number}")
    site.dense_ahead.cut(part.dense)
    site.rows_ahead.cut(part.tables[0])
    touches, site.touches = site.touches, np.zeros_like(site.touches)
    return part, touches


def agree(side: Side, sites: Sequence[SiteCopy], brought: Sequence[tuple[SiteChange, NDArray[np.int64]]]) -> None:
    """Bring an exchange into the parameters of all sites."""
    parts = [part for part, _ in brought]
    keys, change = combined_rows(parts, 0, Rule(linear_rows=side.rows == "mean", sums=False))
    if side.rows == "union" and len(keys):
        steps = max(touches.max() for _, touches in brought)  # some rows are in every step
        parts_of_steps = np.array([touches[keys] / steps for _, touches in brought])
        change *= ((1 - np.prod(1 - parts_of_steps, axis=0)) / parts_of_steps.sum(axis=0)).astype(np.float32)[:, None]
    dense = combined_dense(parts, Rule(linear_rows=False, sums=False))
    for site, part in zip(sites, parts, strict=True):
        if not side.one_table:
            site.rows_ahead.agree((keys, change), part.tables[0], site.table)
        if not side.one_dense:
            site.dense_ahead.agree(dense, part.dense, site.dense, rate=side.rate, momentum=side.momentum)


def main() -> None:
    """Train all sides with all seeds and print their AUC."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=300_000)
    parser.add_argument("--evaluate", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=1_536, help="over all sites")
    parser.add_argument("--rows", type=int, default=4_000, help="of each slot")
    parser.add_argument("--sites", type=int, default=2)
    parser.add_argument("--every", type=int, default=32, help="steps of a round")
    parser.add_argument("--bits", type=int, default=8)
    parser.add_argument("--optimizer", default="adagrad")
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--sides", default="joined,nesterov,mean,union,one-table,one-dense")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sides, gaps = arguments.sides.split(","), []
    for seed in map(int, arguments.seeds.split(",")):
        task = Task(arguments, seed)
        one = train(task, Side(), 1, every=1, bits=32)
        print(f"seed {seed}, one site: AUC {one:.4f}", flush=True)
        for name in sides:
            auc = train(task, SIDES[name], arguments.sites, every=arguments.every, bits=arguments.bits)
            print(f"  {name:10} {auc:.4f} ({auc - one:+.4f})", flush=True)
            gaps += [auc - one] if name == sides[0] else []
    print(f"AUC, {sides[0]} - one site: {max(gaps, key=abs):+.4f}")


if __name__ == "__main__":
    main()
