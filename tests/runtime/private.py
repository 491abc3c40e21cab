"""Private runs with one key and one stream of noise, and what such a run comes to, the long way."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

from dovetail.data.load import load_data
from dovetail.embedding.checkpoints.loading import saved_private
from dovetail.models.schedules import make_schedule
from dovetail.privacy.keys import NOISE_KEY, SAMPLING_KEY, read_secret
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.finished.restore import restore_model
from dovetail.runtime.folder import KEYS
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.samples import Samples
from dovetail.runtime.trainer.trainer import Trainer
from dovetail.spec.run import Run
from tests.runtime.runs import DATA, NUM_ROWS

MODEL = {"name": "ctr-dnn", "options": {"num_rows": NUM_ROWS, "width": 4, "hidden": [16, 8]}}
PRIVACY = {"epsilon": 8.0, "delta": 1e-5, "clip": 0.3, "accountant": "rdp"}
SGD = {"name": "sgd", "learning_rate": 0.3, "rows": "sgd", "rows_learning_rate": 2.0}


def private_run(*, samples: int = 3000, batch: int = 100, epochs: int = 1, optimizer: Any = SGD, **more: Any) -> Run:
    """Return a private run of a small model."""
    sections = {
        "model": MODEL,
        "data": {"name": "clicks", "options": DATA | {"num_samples": samples}},
        "training": {"batch": batch, "epochs": epochs, "seed": 3},
        "optimizer": optimizer,
        "privacy": PRIVACY,
        **more,
    }
    return msgspec.convert(sections, Run)


def over_servers(servers: int, workers: int, **more: Any) -> dict[str, Any]:
    """Return the sections of a run of so many processes."""
    return {
        "servers": {"count": servers, "host_bytes": 1 << 24},
        "worker": [{"count": workers}],
        "table": {"place": "servers"},
        **more,
    }


def prepare_like(
    run: Run, folder: Path, like: Path | None = None, *, model: nn.Module | None = None, **changes: Any
) -> Blueprint:
    """Make a run ready with the keys and the stream of another, and what else its steps owe as told."""
    blueprint = prepare(run, folder, model=model)
    if like is not None:
        for name in (NOISE_KEY, SAMPLING_KEY):
            shutil.copy(like / KEYS / name, folder / KEYS / name)
        changes["stream"] = Blueprint.read(like).private.stream
    blueprint = msgspec.structs.replace(blueprint, private=msgspec.structs.replace(blueprint.private, **changes))
    blueprint.write(folder)
    return blueprint


def finish(folder: Path, *, model: nn.Module | None = None) -> None:
    """Train in this process to the end."""
    with Trainer(folder, model=model) as trainer:
        trainer.wait()


def looks_at(folder: Path) -> list[int]:
    """Return the steps at which the rows of a run were saved, the last one included."""
    newest = checkpoints.newest(folder)
    manifest = checkpoints.RunManifest.read(newest)
    saved = saved_private([manifest.table_at(newest, 0, server) for server in range(manifest.num_servers)])
    return [] if saved is None else [step for step, _, _ in saved.looks if step]


def in_one_process(run: Run, folder: Path, like: Path) -> dict[str, np.ndarray]:
    """Return what another run comes to in one process that saves at the same steps, of which noise hangs."""
    prepare_like(run, folder, like)
    for step in looks_at(like):
        with Trainer(folder) as trainer:
            trainer.wait(stop=lambda trainer=trainer, step=step: trainer.step >= step)
    return values_of(folder)


def values_of(folder: Path, checkpoint: Path | None = None, *, model: nn.Module | None = None) -> dict[str, np.ndarray]:
    """Return what a run came to: every parameter by name, rows with all that they owe."""
    restored = restore_model(folder, model=model, checkpoint=checkpoint, trust=True)
    return {name: each.detach().numpy().copy() for name, each in restored.owner.named_parameters()}


def assert_close(one: dict[str, np.ndarray], other: dict[str, np.ndarray], *, atol: float) -> None:
    """Check that two runs came to the same."""
    assert one.keys() == other.keys()
    for name, each in one.items():
        np.testing.assert_allclose(each, other[name], rtol=0, atol=atol, err_msg=name)


def by_pytorch(folder: Path, *, model: nn.Module | None = None) -> dict[str, np.ndarray]:
    """Return what a run comes to without noise and clipping: plain SGD on its own batches."""
    blueprint = Blueprint.read(folder)
    run = blueprint.run
    source = load_data(run.data.name, **run.data.options)
    first = min((folder / checkpoints.CHECKPOINTS).glob("step-*"))
    graph = restore_model(folder, model=model, checkpoint=first, trust=True).train()
    named = dict(graph.owner.named_parameters())
    schedule = make_schedule(run.optimizer.schedule.name, **run.optimizer.schedule.settings())
    samples = Samples(blueprint, source, sampling_key=read_secret(folder / KEYS, SAMPLING_KEY))
    for step, (batch, _) in enumerate(samples.batches(0)):
        graph.zero_grad()
        if batch.num_samples:
            graph.outcome(batch)[0].backward()
        with torch.no_grad():
            for each in named.values():
                if each.grad is not None:
                    settings = blueprint.row_optimizer if each.grad.is_sparse else blueprint.optimizer
                    rate = settings["learning_rate"]
                    each.sub_(float(rate) * schedule(step) / blueprint.private.batch * each.grad.to_dense())
    return {name: each.detach().numpy() for name, each in named.items()}
