"""A worker's parts beside the shards they talk to, all in this process and without sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dovetail.models.load import load_model
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.messages import Assign
from dovetail.runtime.model.build import build_model
from dovetail.runtime.prepare.run_folder import load_source, prepare
from dovetail.runtime.private_folder import remove_private_folder
from dovetail.runtime.samples import Samples
from dovetail.runtime.server.shard import Shard
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.links.servers import ServerConnections
from dovetail.runtime.worker.rows.batch_rows import BatchRows
from dovetail.runtime.worker.tasks.task import MicroBatch, Task
from testbed.direct_caller import DirectCaller
from testbed.direct_servers import answer_as
from tests.runtime.runs import cut, make_run

CPU = torch.device("cpu")


class Bench:
    """A prepared run, its shards, and a model over them."""

    def __init__(
        self, folder: Path, *, own: nn.Module | None = None, lasts: tuple[int, ...] = (),
        counts: tuple[int, ...] = (), **how: Any,
    ) -> None:  # fmt: skip
        """Prepare it; it is cut after the layers `lasts`, with so many workers in each stage."""
        self.run = make_run(**({"samples": 400, "batch": 100} | how))
        self.folder, self.source = folder, load_source(self.run)
        if counts:
            num_layers = len(load_model(self.run.model.name, schema=self.source.schema, **self.run.model.options))
            self.run = cut(self.run, *lasts, num_layers - 1, workers=counts)
        self.blueprint = prepare(self.run, folder, model=own, source=self.source)
        self.shards = [Shard(self.blueprint, number, folder / "cold") for number in range(self.blueprint.num_servers)]
        for shard in self.shards:
            shard.load(checkpoints.newest(folder))
        self.graph = build_model(self.blueprint.run, self.source.schema, own)
        self.model = ServedModel(self.graph, BatchRows(self.blueprint.num_servers, CPU), CPU)
        self.samples = Samples(self.blueprint, self.source)

    def lines(self) -> ServerConnections:
        """Return lines to the shards."""
        return ServerConnections(self.blueprint, [DirectCaller(answer_as(shard)) for shard in self.shards])

    def close(self) -> None:
        """Give back the shards' memory, and the folder of sockets and lanes."""
        for shard in self.shards:
            shard.close()
        remove_private_folder(self.blueprint.private_folder)


def assign(
    *ranges: tuple[int, int], step: int = 0, task: int = 0, is_open: bool = False, generation: int = 1
) -> Assign:
    """Return a task."""
    return Assign(generation=generation, step=step, task=task, epoch=0, ranges=ranges, is_open=is_open)


def micro_batch(first: int, last: int, *, number: int = 0, **how: Any) -> MicroBatch:
    """Return a micro-batch of a task of its own."""
    return MicroBatch(Task(assign((first, last), **how), closed=True), number, first, last)


@contextmanager
def running(*works: Callable[[], Any]) -> Iterator[None]:
    """Run each in a thread; the block is over when they have ended, and what one raised comes out."""
    problems: list[BaseException] = []

    def guarded(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if problems:
        raise problems[0]
