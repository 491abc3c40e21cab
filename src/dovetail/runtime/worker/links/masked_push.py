"""Gradients under masks: of a whole step at once, over the rows that any worker has in it.

Servers are told the keys of this worker's rows, which they know from its look-ups, and answer with those of all. Then
each gets one vector: a number for each of these rows and of its dense parameters, zero where this worker has none, as
fixed point, plus masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.masking.fixed_point import LIMBS, FixedPoint, Words, loss_words
from dovetail.runtime.masking.masks import MaskKeys
from dovetail.runtime.masking.rounding import most_members
from dovetail.runtime.messages import Agree, MaskedPush, MaskKey, Push
from dovetail.runtime.process import Process
from dovetail.runtime.worker.links.servers import ServerConnections, Wanted
from dovetail.runtime.worker.rows.keys import Keys
from dovetail.runtime.worker.tasks.task import Floats, RowGradients, Task


class MaskedPusher:
    """Collects the gradients of a task, and sends them when they are whole; the sending thread's."""

    def __init__(self, process: Process, keys: MaskKeys, connections: ServerConnections) -> None:
        """Keep the connections; a worker's `keys` are those that it told the coordinator of."""
        blueprint = process.blueprint
        self._keys, self._connections, self._log = keys, connections, process.log
        self._widths = [table.width for table in blueprint.tables]
        self._parts = [blueprint.dense_slice(number) for number in range(blueprint.num_servers)]
        self._reach = blueprint.mask_reach
        self._most = None if blueprint.private is None else most_members(blueprint)
        self._task: Task | None = None
        self._rows: RowGradients = []
        self._has_said = False

    def push(self, task: Task, message: Push, rows: RowGradients, dense: Floats | None, wanted: Wanted) -> None:
        """Take in gradients of a task; with the last of them, send all."""
        if task is not self._task:
            self._task, self._rows = task, []
        self._rows += rows
        if not message.last:
            return
        rows, self._rows, self._task = self._rows, [], None
        members = task.assign.masks
        if self._most is not None and len(members) > self._most:
            raise TrainingError(
                f"{len(members)} workers take part, and samples are clipped for {self._most}",
                hint="have fewer join, or begin with as many in the run file",
            )
        self._keys.begin(message.generation, message.step, members)
        agree = Agree(
            generation=message.generation,
            step=message.step,
            worker=message.worker,
            members=tuple(member.name for member in members),
        )
        mine = [self._keys_at(number, rows) for number in range(len(self._parts))]
        agreed = self._connections.agree(agree, mine, wanted)
        fixed = FixedPoint(self._reach, len(members))
        words = [
            self._masked(number, keys, rows, dense, task.loss, fixed, members) for number, keys in enumerate(agreed)
        ]
        masked = MaskedPush(
            generation=message.generation,
            step=message.step,
            task=message.task,
            worker=message.worker,
            members=agree.members,
            positions=message.positions,
            samples=message.samples,
        )
        self._connections.push_masked(masked, [each.view(np.int32) for each in words], wanted)

    def _keys_at(self, number: int, rows: RowGradients) -> list[Keys]:
        """Return the keys of each table that a server owns, each once."""
        none = np.empty(0, dtype=np.int64)
        by_table: list[list[Keys]] = [[none] for _ in self._widths]
        for look_up, _ in rows:
            by_table[look_up.table].append(look_up.keys[look_up.of_server(number)])
        return [np.unique(np.concatenate(each)) for each in by_table]

    def _masked(
        self,
        number: int,
        agreed: Sequence[Keys],
        rows: RowGradients,
        dense: Floats | None,
        loss: float,
        fixed: FixedPoint,
        members: Sequence[MaskKey],
    ) -> Words:
        """Return what a server gets."""
        own = np.zeros(0, dtype=np.float32) if dense is None else dense[self._parts[number]]
        numbers = np.concatenate([*(self._sums(number, table, keys, rows) for table, keys in enumerate(agreed)), own])
        words = self._keys.mask(members, number, len(numbers) + LIMBS)
        cut = fixed.add_to(words[: len(numbers)], numbers)
        words[len(numbers) :] += loss_words(loss)
        if cut and not self._has_said:
            self._has_said = True
            self._log(
                f"{cut} numbers of a gradient were beyond {fixed.reach:g}, which fixed point reaches, and were cut to "
                "it; where that is too often: privacy.mask_range"
            )
        return words

    def _sums(self, number: int, table: int, keys: Keys, rows: RowGradients) -> Floats:
        """Return this worker's gradients of the rows that were agreed on, one after the other."""
        sums = np.zeros((len(keys), self._widths[table]), dtype=np.float32)
        for look_up, values in rows:
            if look_up.table == table:
                part = look_up.of_server(number)
                sums[np.searchsorted(keys, look_up.keys[part])] += values[part]  # a look-up has each key once
        return sums.reshape(-1)
