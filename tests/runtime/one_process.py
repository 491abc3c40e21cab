"""The same training in one process: PyTorch's autograd and optimizers, rows stepped by plain NumPy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.data.batch import Batch
from dovetail.data.loader import Loader
from dovetail.data.source import Source
from dovetail.embedding import make_row_optimizer
from dovetail.embedding.hashing import first_values
from dovetail.models.embedding import SlotEmbedding
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.schedules import make_schedule
from dovetail.runtime.blueprint import table_seed
from dovetail.spec.run import Run
from tests.embedding.twins import step_row

DENSE = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
SETTINGS = {"epsilon": "eps"}
"""What PyTorch calls the settings of dense optimizers that tests set."""
STATE = {
    "sgd": {},
    "momentum": {"velocity": "momentum_buffer"},
    "adagrad": {"squares": "sum"},
    "adam": {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"},
    "adamw": {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"},
}


@dataclass
class RowsOf:
    """A layer's weight with the optimizer state of its rows."""

    weight: Tensor
    rows: np.ndarray
    touched: set[int]


class OneProcess:
    """Trains a run's model on whole batches; `graph` is the user's model with weights of its own."""

    def __init__(self, run: Run, graph: LayerGraph, source: Source) -> None:
        """Give the tables their first values."""
        self._run, self._graph, self._source = run, graph, source
        self._optimizer_name = str(run.optimizer.name)
        rate = float(run.optimizer.learning_rate or 0)
        self._row_optimizer = make_row_optimizer(
            run.optimizer.rows or {"momentum": "sgd", "adamw": "adam"}.get(self._optimizer_name, self._optimizer_name),
            learning_rate=run.optimizer.rows_learning_rate or rate,
            **run.optimizer.rows_settings,
        )
        self.tables = [self._first_rows(number, weight) for number, weight in enumerate(sparse_weights(graph))]
        for module in graph.modules():
            if getattr(module, "padding_idx", None) is not None and module.sparse:
                with torch.no_grad():
                    module.weight[module.padding_idx] = 0.0
        sparse = {id(table.weight) for table in self.tables}
        self._dense = [p for p in graph.parameters() if id(p) not in sparse and p.requires_grad]
        settings = {SETTINGS[name]: value for name, value in run.optimizer.settings.items()}
        self._optimizer = DENSE[self._optimizer_name](
            self._dense or [nn.Parameter(torch.zeros(0))], lr=rate, **settings
        )
        self._rate = rate
        self._schedule = make_schedule(run.optimizer.schedule.name, **run.optimizer.schedule.settings())
        self.step = 0

    def _first_rows(self, number: int, weight: Tensor) -> RowsOf:
        """Fill a weight with the first values of its table."""
        num_rows, width = weight.shape
        values = first_values(
            np.arange(num_rows), width=width, seed=table_seed(self._run.training.seed, number),
            scale=1 / 3 / width**0.5,
        )  # fmt: skip
        state = np.full((num_rows, self._row_optimizer.state_width(width)), self._row_optimizer.first_state)
        with torch.no_grad():
            weight.copy_(torch.from_numpy(values))
        return RowsOf(weight, np.concatenate([values, state], axis=1).astype(np.float32), set())

    def train(self) -> None:
        """See all samples, all epochs."""
        for epoch in range(self._run.training.epochs):
            loader = Loader(
                self._source,
                batch_size=self._run.training.batch or 0,
                seed=self._run.training.seed,
                epoch=epoch,
                shuffle=self._run.data.shuffle,
                stop=self._run.data.samples,
                block_samples=self._run.data.block_samples,
                prefetch=0,
            )
            for batch in loader:
                self._train_on(batch)

    def _train_on(self, batch: Batch) -> None:
        """Step once by the mean over a batch."""
        for parameter in self._graph.parameters():
            parameter.grad = None
        (self._graph(batch) / batch.num_samples).backward()
        factor = self._schedule(self.step)
        optimizer = self._run.optimizer
        if optimizer.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._dense, optimizer.clip_norm)
        if optimizer.clip_value is not None:
            nn.utils.clip_grad_value_(self._dense, optimizer.clip_value)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * factor
        self._optimizer.step()
        rates = replace(self._row_optimizer, learning_rate=self._row_optimizer.learning_rate * factor)  # type: ignore[type-var]
        for table in self.tables:
            self._step_rows(table, rates)
        self.step += 1

    def _step_rows(self, table: RowsOf, optimizer: Any) -> None:
        """Step the rows that a batch used."""
        gradient = table.weight.grad
        if gradient is None:
            return
        gradient = gradient.coalesce()
        table.rows[:, : table.weight.shape[1]] = table.weight.detach().numpy()  # max_norm changes it as it is read
        for key, values in zip(gradient.indices()[0].tolist(), gradient.values().numpy(), strict=True):
            table.rows[key] = step_row(optimizer, table.rows[key], values, self.step + 1)
            table.touched.add(key)
        with torch.no_grad():
            table.weight.copy_(torch.from_numpy(table.rows[:, : table.weight.shape[1]]))

    @property
    def dense(self) -> np.ndarray:
        """Return the dense parameters as one vector."""
        return torch.cat([torch.zeros(0), *(p.detach().reshape(-1) for p in self._dense)]).numpy()

    @property
    def dense_state(self) -> dict[str, np.ndarray]:
        """Return the vectors of the dense optimizer's state, under our names."""
        states = [self._optimizer.state[parameter] for parameter in self._dense]
        return {
            ours: torch.cat([torch.zeros(0), *(state[theirs].reshape(-1) for state in states)]).numpy()
            for ours, theirs in STATE[self._optimizer_name].items()
        }


def sparse_weights(graph: LayerGraph) -> list[Tensor]:
    """Return the weights of the layers with sparse gradients alone, in the order of the model, each once."""
    tables = [
        module
        for module in graph.modules()
        if isinstance(module, SlotEmbedding) or (isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse)
    ]
    others = {id(p) for module in graph.modules() if module not in tables for p in module.parameters(recurse=False)}
    return list({id(table.weight): table.weight for table in tables if id(table.weight) not in others}.values())
