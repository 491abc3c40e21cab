"""Settings of optimizers, and groups of parameters with their own."""

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.runtime import TrainingError, train
from dovetail.runtime.blueprint import DenseEntry
from dovetail.runtime.dense.optimizer import optimizer_of
from dovetail.spec.run_sections import RunGroup, RunOptimizer
from tests.runtime.coordinator.blueprints import make_blueprint
from tests.runtime.test_validation import Line, slope

ENTRIES = (
    DenseEntry(name="layers.fc.weight", shape=(2, 3), offset=0),
    DenseEntry(name="layers.fc.bias", shape=(2,), offset=6),
    DenseEntry(name="layers.out.weight", shape=(1, 2), offset=8),
)
GROUPS = (
    RunGroup(pattern="*.bias", settings={"weight_decay": 0.0}),
    RunGroup(pattern="out.*", learning_rate=0.5, settings={"beta1": 0.5}),
)


def blueprint_of(groups):
    import msgspec

    plain = make_blueprint()
    run = msgspec.structs.replace(plain.run, optimizer=RunOptimizer(name="adamw", learning_rate=0.1, groups=groups))
    settings = {"name": "adamw", "learning_rate": 0.1, "weight_decay": 0.3, "beta1": 0.9, "beta2": 0.98}
    return msgspec.structs.replace(plain, run=run, dense=ENTRIES, optimizer=settings)


@pytest.mark.parametrize(
    "parts", [[slice(0, 10)], [slice(0, 5), slice(5, 10)], [slice(0, 7), slice(7, 9), slice(9, 10)]]
)
def test_groups_step_as_those_of_torch_wherever_the_vector_is_cut(parts):
    blueprint, draw = blueprint_of(GROUPS), np.random.default_rng(3)
    first = draw.normal(size=10).astype(np.float32)
    tensors = [nn.Parameter(torch.from_numpy(first[a:b].copy())) for a, b in ((0, 6), (6, 8), (8, 10))]
    reference = torch.optim.AdamW(
        [
            {"params": [tensors[0]]},
            {"params": [tensors[1]], "weight_decay": 0.0},
            {"params": [tensors[2]], "lr": 0.5, "betas": (0.5, 0.98)},
        ],
        lr=0.1, betas=(0.9, 0.98), weight_decay=0.3,
    )  # fmt: skip
    shards = [(first[part].copy(), optimizer_of(blueprint, part), part) for part in parts]
    states = [optimizer.first_state(len(values)) for values, optimizer, _ in shards]

    for number in range(1, 5):
        gradient = draw.normal(size=10).astype(np.float32)
        for tensor, (a, b) in zip(tensors, ((0, 6), (6, 8), (8, 10)), strict=True):
            tensor.grad = torch.from_numpy(gradient[a:b].copy())
        reference.step()
        for (values, optimizer, part), state in zip(shards, states, strict=True):
            optimizer.step(values, gradient[part].copy(), state, step_number=number, scale=1.0)

    expected = torch.cat([tensor.detach() for tensor in tensors]).numpy()
    np.testing.assert_allclose(np.concatenate([values for values, _, _ in shards]), expected, rtol=2e-5, atol=1e-6)


def test_without_groups_there_is_one_optimizer():
    assert optimizer_of(blueprint_of(())).name == "adamw"


@pytest.mark.parametrize(
    ("optimizer", "complaint"),
    [
        ({"name": "adam", "settings": {"beta3": 0.1}}, "`adam` has no setting `beta3`"),
        ({"name": "adam", "groups": [{"pattern": "*.scale"}]}, "no dense parameter is called `\\*.scale`"),
        ({"name": "adam", "groups": [{"pattern": "*.bias", "settings": {"decay": 1}}]}, "no setting `decay`"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(tmp_path, optimizer, complaint):
    with pytest.raises(TrainingError, match=complaint):
        train(Line(), slope(1.0), folder=tmp_path / "run", optimizer=optimizer, loss="squared")

    assert not (tmp_path / "run" / "checkpoints").exists()
