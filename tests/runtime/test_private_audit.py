"""An attack on private and plain runs: who was among the data is found out without privacy, and not with it.

Every sample is a canary: features, an id and a label that nothing else has, among the data by the toss of a coin. The
attack asks the trained model for each one's label, and guesses of those that it is surest of that they were among the
data, and of those that it is least sure of that they were not. Of (epsilon, 0)-private training each guess is right
with a chance of at most e^epsilon / (1 + e^epsilon), whatever came of the others (Steinke, Nasr and Jagielski, 2023:
auditing with one run), so the number of right guesses says how large epsilon is at least. A delta of 1e-6 adds nothing
that shows here.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

import dovetail
from dovetail.data import Batch, Schema, Slot

FEATURES = 512
SURE = 0.999
"""How sure the bound is."""


class Memory(nn.Module):
    """A row for every id, and a layer over the features: enough to learn every sample by heart."""

    def __init__(self, num_ids: int) -> None:
        super().__init__()
        self.rows = nn.EmbeddingBag(num_ids, 2, mode="sum")
        nn.init.zeros_(self.rows.weight)
        self.layer = nn.Linear(FEATURES + 2, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        pooled = self.rows(ids.reshape(-1, 1))
        return self.layer(torch.cat([dense, pooled], dim=1)).squeeze(1)


@dataclass(frozen=True)
class Canaries:
    """Those of many canaries that a mask leaves."""

    seed: int
    chosen: NDArray[np.int64]

    @property
    def schema(self) -> Schema:
        names = tuple(f"f{number}" for number in range(FEATURES))
        return Schema(dense=names, slots=(Slot(name="who"),))

    @property
    def num_samples(self) -> int:
        return len(self.chosen)

    def read(self, first: int, last: int) -> Batch:
        last = min(last, len(self.chosen))
        return self.gather(np.arange(first, max(first, last)))

    def gather(self, samples: NDArray[np.int64], *, shift: int = 0, pin: bool = False) -> Batch:
        draw = np.random.default_rng(self.seed)
        all_features = draw.standard_normal((int(self.chosen.max()) + 1, FEATURES)) / math.sqrt(FEATURES)
        labels = draw.integers(0, 2, int(self.chosen.max()) + 1)
        ids = self.chosen[samples]
        return Batch(
            sample_ids=torch.from_numpy(samples + shift),
            dense=torch.from_numpy(all_features[ids].astype(np.float32)),
            ids=torch.from_numpy(ids.copy()),
            offsets=torch.arange(len(ids) + 1),
            labels=torch.from_numpy(labels[ids].astype(np.float32)),
        )


def attacked(folder, *, num: int, seed: int, epochs: int, batch: int, guesses: int, **settings) -> float:
    """Train on some of `num` canaries; return what epsilon is at least, by how many guesses were right."""
    is_member = np.random.default_rng(seed + 1).random(num) < 0.5
    is_member[-1] = True
    members, everyone = Canaries(seed, np.flatnonzero(is_member)), Canaries(seed, np.arange(num))
    torch.manual_seed(seed)
    result = dovetail.train(
        Memory(num),
        members,
        folder=folder,
        epochs=epochs,
        batch=batch,
        optimizer={"name": "sgd"},
        loss="logistic",
        **settings,
    )
    model = result.load_model().eval()
    asked = everyone.read(0, num)
    with torch.no_grad():
        answers = model.predict(asked).reshape(-1).double().numpy()
    surety = np.where(asked.labels.numpy() > 0.5, answers, -answers)
    order = np.argsort(surety)
    right = int(is_member[order[-guesses:]].sum() + (~is_member[order[:guesses]]).sum())
    return least_epsilon(right, 2 * guesses)


def least_epsilon(right: int, guesses: int) -> float:
    """Return what epsilon is at least where so many guesses are right (Clopper and Pearson, one-sided)."""
    least = float(stats.beta.ppf(1.0 - SURE, right, guesses - right + 1)) if right else 0.0
    return max(0.0, math.log(least / (1.0 - least))) if least > 0.0 else 0.0


def test_the_bound_is_what_counting_says():
    # All of n right: (e^eps / (1 + e^eps))^n = 0.001.
    epsilon = least_epsilon(100, 100)

    assert (math.exp(epsilon) / (1 + math.exp(epsilon))) ** 100 == pytest.approx(1 - SURE, rel=1e-6)
    assert least_epsilon(50, 100) == 0.0


CANARIES = {"num": 400, "epochs": 30, "batch": 50, "guesses": 60, "learning_rate": 2.0, "rows_learning_rate": 4.0}
PRIVACY = {"delta": 1e-6, "clip": 1.0, "accountant": "rdp"}


def test_who_was_among_the_data_is_found_out_without_privacy_and_not_with_it(tmp_path):
    plain = attacked(tmp_path / "plain", seed=1, **CANARIES)
    private = attacked(tmp_path / "private", seed=1, epsilon=1.0, **PRIVACY, **CANARIES)
    clipped = attacked(tmp_path / "clipped", seed=1, epsilon=1e9, noise=0.02, **PRIVACY, **CANARIES)

    assert plain > 2.0
    assert private <= 1.0
    assert clipped > 2.0  # it is the noise that hides, and the attack sees where there is too little


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("promised", [0.5, 2.0, 8.0])
def test_no_attack_finds_more_than_is_promised(tmp_path, promised):
    how = {**CANARIES, "num": 800, "guesses": 150, "batch": 100}
    found = [
        attacked(tmp_path / f"{seed}", seed=seed, epsilon=promised, **PRIVACY | {"accountant": "pld"}, **how)
        for seed in range(4)
    ]
    plain = attacked(tmp_path / "plain", seed=0, **how)
    print(f"promised {promised:g}, found {', '.join(f'{each:.2f}' for each in found)}, without privacy {plain:.2f}")

    assert max(found) <= promised
    assert plain > 2.0
