"""Steps of batches of which each worker has a part, with rows that lie with all of them.

What a batch looks up is sent to the owners of its rows while earlier batches are computed, by a thread and a group of
its own. What a model looks up that its data alone do not decide is asked for when it does, in rounds that all workers
take part in, those that are done with theirs too.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.embedding import Table, Whereabouts
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.trainer.sharded.process_group import ProcessGroup
from dovetail.runtime.trainer.sharded.row_exchange import Floats, KeyExchange, RowExchange, add_in_order, exchange_keys
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.control import Pulse
from dovetail.runtime.worker.rows.batch_rows import BatchRows, Leaf, are_keys
from dovetail.runtime.worker.rows.keys import Keys, LookUp, look_up
from dovetail.runtime.worker.rows.pinned_memory import to_host


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What a part of a batch looks up: of each table all keys at once, and of each look-up its share of them."""

    tables: tuple[LookUp, ...]
    look_ups: tuple[LookUp, ...]
    samples: int = 0
    exchanged: Future[KeyExchange | None] = field(default_factory=Future)


def asked_of(found: Sequence[tuple[int, Keys]], num_tables: int, num_owners: int, samples: int) -> Asked:
    """Return look-ups of samples, (table, keys) each, with the keys of a table joined: each is asked for once."""
    tables, look_ups = [], []
    for table in range(num_tables):
        mine = [keys for of, keys in found if of == table]
        joined = look_up(table, mine[0] if len(mine) == 1 else np.concatenate([NO_KEYS, *mine]), num_owners)
        tables.append(joined)
        begin = 0
        for keys in mine:
            places = joined.places[begin : begin + len(keys)]
            look_ups.append(LookUp(table, keys, joined.keys, places, joined.bounds))
            begin += len(keys)
    return Asked(tuple(tables), tuple(look_ups), samples)


NO_KEYS = np.empty(0, dtype=np.int64)


class KeyThread:
    """Exchanges the keys of announced batches, in their order, while the caller computes."""

    def __init__(self, group: ProcessGroup, pulse: Pulse) -> None:
        """Start it; it ends with the process, or when it is closed."""
        self._group, self._pulse = group, pulse
        self._announced: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dovetail-keys", daemon=True)
        self._thread.start()

    def announce(self, asked: Asked) -> None:
        """Have the keys of a batch exchanged."""
        self._announced.put(asked)

    def close(self) -> None:
        """Have it end; others may never announce what it waits for, so nobody waits for it."""
        self._announced.put(None)

    def _run(self) -> None:
        while True:
            self._pulse.rest()
            asked = self._announced.get()
            if asked is None:
                return
            try:
                asked.exchanged.set_result(exchange_keys(self._group, asked.tables, samples=asked.samples))
            except Exception as problem:  # whoever computes the batch raises it
                asked.exchanged.set_exception(problem)
                return


class PartLeaf(Leaf):
    """One of several look-ups of the same rows."""

    def __init__(self, wanted: LookUp, whole: Leaf) -> None:
        """Show the rows of `whole`, to which gradients flow."""
        self.wanted, self._kept, self.tensor = wanted, whole, whole.tensor  # type: ignore[assignment]


class ShardedRows(BatchRows):
    """The rows of the part of a batch that is being computed."""

    def __init__(self, num_owners: int, device: torch.device) -> None:
        """Start with no batch."""
        super().__init__(num_owners, device)
        self._waiting: list[LookUp] = []
        self._ask: Callable[[int, Tensor], Leaf] | None = None
        self.rounds: list[tuple[KeyExchange, list[Leaf], list[Whereabouts | None]]] = []
        """Of this batch: what was exchanged, the rows of each table, and where those lie that are owned here."""

    def begin_batch(self, asked: Asked, ask: Callable[[int, Tensor], Leaf]) -> None:
        """Start a batch; `ask` makes a round for a look-up that was not announced, and returns its rows."""
        self._waiting, self.rounds, self._ask = list(asked.look_ups), [], ask

    def take_in(
        self, exchange: KeyExchange, rows: Sequence[Tensor], wheres: list[Whereabouts | None]
    ) -> Sequence[Leaf]:
        """Take in a round."""
        leaves = [
            Leaf(wanted, each, self.device, self._limits.get(table))
            for table, (wanted, each) in enumerate(zip(exchange.look_ups, rows, strict=True))
        ]
        self.rounds.append((exchange, leaves, wheres))
        return leaves

    def leaf(self, table: int, keys: Tensor) -> Leaf:
        """Return the rows of some keys."""
        for number, wanted in enumerate(self._waiting):
            if wanted.table == table and are_keys(keys, wanted.asked):
                del self._waiting[number]
                return PartLeaf(wanted, self.rounds[0][1][table])
        if self._ask is None:
            raise RuntimeError("rows are looked up outside of a batch")
        return self._ask(table, keys)


class ShardedSteps:
    """Computes a worker's part of batches in the order in which they were announced."""

    def __init__(
        self,
        model: ServedModel,
        rows: ShardedRows,
        tables: Sequence[Table],
        group: ProcessGroup,
        ahead: ProcessGroup,
        pulse: Pulse,
        *,
        is_closed: bool,
    ) -> None:
        """Take the model over; `ahead` is the group for keys. A model that `is_closed` looks up nothing else."""
        self._model, self._rows, self._tables, self._group, self._pulse = model, rows, tables, group, pulse
        self._exchange = RowExchange(group, tables)
        self._keys = KeyThread(ahead, pulse)
        self._is_closed = is_closed
        self._steps_rows: list[bool] | None = None
        """By table: whether the loss depends on its rows; None where that is to be asked of all in each step."""
        self._nothing = [look_up(number, NO_KEYS, group.size) for number in self._numbers]
        self._announced: deque[Asked] = deque()
        self._summing: Any = None
        self._gradients = model.gradients
        self.waited_s = 0.0
        """How long this worker has waited for others."""

    def prepare(self, batch: Batch) -> Asked:
        """Return what a part of a batch looks up, each key once, by owner."""
        return asked_of(self._model.asked(batch), len(self._tables), self._group.size, batch.num_samples)

    def announce(self, prepared: Asked) -> None:
        """Have the keys of a batch to come sent to their owners."""
        self._announced.append(prepared)
        self._keys.announce(prepared)

    def close(self) -> None:
        """Exchange no more keys."""
        self._keys.close()

    def compute(self, batch: Batch, *, step: int, scale: float, factor: float) -> tuple[Tensor, Any]:
        """Compute a part of a batch, and step the rows that all parts use; dense gradients are being summed then."""
        exchange, asked = self._exchange_of_next(), self._announced.popleft()
        self._rows.begin_batch(asked, self._fetch)
        self._look_up(exchange)
        loss, scores = self._forward(batch)
        while not self._is_closed and self._round(self._nothing, asks=False) is not None:
            pass  # others are not done yet
        if batch.num_samples:
            loss.backward()  # type: ignore[no-untyped-call]
        self._gradients = self._model.gradients.cpu()  # on a CPU, the same memory
        self._summing = self._group.begin_sum(self._gradients)
        self._step_rows(step=step, scale=scale, factor=factor)
        return loss, scores

    def finish_sum(self) -> None:
        """Wait until the dense gradients are those of the whole batch."""
        begun_s = time.perf_counter()
        self._group.finish(self._summing)
        self._summing = None
        if self._model.gradients.is_cuda:
            self._model.gradients.copy_(self._gradients)
        self.waited_s += time.perf_counter() - begun_s

    @property
    def _numbers(self) -> range:
        return range(len(self._tables))

    def samples_of_next(self) -> int:
        """Return how many samples all parts of the next batch announced have together; broken ones are none."""
        return self._exchange_of_next().samples

    def _exchange_of_next(self) -> KeyExchange:
        """Return what was exchanged of the next batch announced."""
        exchange = self._wait_for(self._announced[0].exchanged)
        if exchange is None:
            raise TrainingError("no worker asked for the rows of a batch", hint="a bug: report it")
        return exchange

    def _wait_for(self, exchanged: Future[KeyExchange | None]) -> KeyExchange | None:
        begun_s = time.perf_counter()
        self._pulse.rest()
        found = exchanged.result()
        self._pulse.beat()
        self.waited_s += time.perf_counter() - begun_s
        return found

    def _look_up(self, exchange: KeyExchange) -> Sequence[Leaf]:
        """Bring the rows of a round here."""
        begun_s = time.perf_counter()
        rows, wheres = self._exchange.rows(exchange)
        self.waited_s += time.perf_counter() - begun_s
        return self._rows.take_in(exchange, rows, wheres)

    def _forward(self, batch: Batch) -> tuple[Tensor, Any]:
        """Return the summed loss of a part, and the model's answer; of no samples, nothing."""
        if not batch.num_samples:
            return torch.zeros(()), None
        device = self._model.device
        with self._model.computing():
            there = batch if device.type == "cpu" else batch.pinned().to(device, non_blocking=True)
            return self._model.outcome(there)

    def _fetch(self, table: int, keys: Tensor) -> Leaf:
        """Look up what was not announced: a round of all workers."""
        if self._is_closed:
            raise TrainingError(
                "a model looks up other rows than its layers say",
                hint='a bug: report it; table.place = "servers" works',
            )
        asked = np.ascontiguousarray(keys.detach().to("cpu", torch.int64).numpy())
        look_ups = list(self._nothing)
        look_ups[table] = look_up(table, asked, self._group.size)
        leaves = self._round(look_ups, asks=True)
        if leaves is None:
            raise TrainingError("a round has nobody who asks", hint="a bug: report it")
        return leaves[table]

    def _round(self, look_ups: Sequence[LookUp], *, asks: bool) -> Sequence[Leaf] | None:
        """Take part in a round; None where nobody asks any more."""
        exchange = exchange_keys(self._group, look_ups, asks=asks)
        return None if exchange is None else self._look_up(exchange)

    def _step_rows(self, *, step: int, scale: float, factor: float) -> None:
        """Step the rows that are owned here by what all workers' samples give them."""
        rounds = self._rows.rounds
        steps_rows = self._which_step([leaves for _, leaves, _ in rounds])
        sums = [self._exchange.gradients(exchange, _gradients(leaves)) for exchange, leaves, _ in rounds]
        for number, table in enumerate(self._tables):
            table.begin_step(step, factor=factor)
            if not steps_rows[number]:
                continue
            if len(rounds) == 1:
                table.update_distinct(
                    rounds[0][0].owned[number].keys, sums[0][number], scale=scale, where=rounds[0][2][number]
                )
            else:
                asked = [exchange.owned[number].keys for exchange, _, _ in rounds]
                keys, total = _merged(asked, [of_round[number] for of_round in sums])
                table.update_distinct(keys, total, scale=scale)

    def _which_step(self, rounds: Sequence[Sequence[Leaf]]) -> Sequence[bool]:
        """Say of each table whether some worker's loss depends on its rows."""
        if self._steps_rows is not None:
            return self._steps_rows
        depends = [any(leaves[number].tensor.grad is not None for leaves in rounds) for number in self._numbers]
        mine = np.tile(np.array(depends, dtype=np.int64), (self._group.size, 1))
        theirs = self._group.swap_counts(mine)
        found = [bool(theirs[:, number].any()) for number in self._numbers]
        if self._is_closed:  # by its layers, which are the same for every batch
            self._steps_rows = found
        return found


def _gradients(leaves: Sequence[Leaf]) -> list[Floats]:
    """Return the gradients of rows; zeros where the loss does not depend on them."""
    return to_host([torch.zeros_like(leaf.tensor) if leaf.tensor.grad is None else leaf.tensor.grad for leaf in leaves])


def _merged(keys: Sequence[Keys], of_rounds: Sequence[Floats]) -> tuple[Keys, Floats]:
    """Return each key of several rounds once, and the sum of its gradients in their order."""
    asked = look_up(0, np.concatenate(keys), 1)
    gradients = np.concatenate(of_rounds)
    sums = np.full((len(asked.keys), gradients.shape[1]), -0.0, dtype=np.float32)
    add_in_order(gradients, asked.places, sums)
    return asked.keys, sums
