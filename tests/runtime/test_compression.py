"""Runs whose numbers travel in fewer bits: as good as in 32, in all modes, and through a checkpoint."""

import msgspec
import numpy as np
import pytest

from dovetail.errors import SpecError
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import RunModel
from dovetail.spec.run_sections import RunCompression, RunOptimizer
from testbed.direct_servers import DirectServers
from tests.runtime.runs import cut, last_state, make_run, train

WIDE = RunModel(name="ctr-dnn", options={"num_rows": 240, "width": 8, "hidden": [64, 32]})
"""Whose layers are large enough for codecs."""
ADAM = RunOptimizer(name="adam", learning_rate=0.005)


def make(compression, **how):
    run = make_run(model=WIDE, **({"samples": 20_000, "optimizer": ADAM} | how))
    return msgspec.structs.replace(run, compression=compression)


def losses_of(folder, compression):
    """Return the loss of every step of a run in this process."""
    prepare(make(compression), folder)
    alone, losses = DirectServers(folder), []
    alone.run(lambda _, loss: losses.append(loss))
    alone.close()
    return np.array(losses)


@pytest.fixture(scope="module")
def plain_losses(tmp_path_factory):
    return losses_of(tmp_path_factory.mktemp("plain") / "run", RunCompression())


@pytest.mark.parametrize(
    ("compression", "limit"),
    [
        (RunCompression(bits=16), 0.001),
        (RunCompression(bits=8), 0.002),
        (RunCompression(bits=4), 0.004),
        (RunCompression(bits=2), 0.008),
        (RunCompression(bits=1), 0.008),
        (RunCompression(topk=0.05), 0.012),
    ],
    ids=["16", "8", "4", "2", "1", "topk"],
)
def test_every_width_learns_as_32_bits_do(plain_losses, tmp_path, compression, limit):
    losses = losses_of(tmp_path / "run", compression)

    assert np.mean(losses[:10]) > np.mean(plain_losses[-20:]) + 0.05  # there is something to learn
    assert np.mean(losses[-20:]) == pytest.approx(np.mean(plain_losses[-20:]), abs=limit)


def residual_in(folder):
    newest = checkpoints.newest(folder)
    return checkpoints.load_vectors(newest, checkpoints.RunManifest.read(newest))[1].get(checkpoints.RESIDUAL)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_run_in_two_bits_keeps_what_workers_kept_back_and_goes_on(tmp_path, mode):
    run = make(RunCompression(bits=2), samples=2000, servers=2, mode=mode)
    train(run, tmp_path / "run")

    assert np.linalg.norm(residual_in(tmp_path / "run")) > 0

    again = msgspec.structs.replace(
        run, training=msgspec.structs.replace(run.training, epochs=2), compression=RunCompression()
    )
    train(again, tmp_path / "run", resume=True)

    assert last_state(tmp_path / "run").manifest.position == 4000
    assert residual_in(tmp_path / "run") is None


def test_activations_in_eight_bits_train_as_well(tmp_path):
    run = cut(make(RunCompression(activations=8), samples=2000), 1, 7, workers=(1, 1))

    train(run, tmp_path / "run")

    assert last_state(tmp_path / "run").manifest.position == 2000


def test_a_ring_in_eight_bits_ends_near_one_in_32(tmp_path):
    for name, bits in (("plain", 32), ("coded", 8)):
        train(make(RunCompression(bits=bits), samples=2000, dense="ring"), tmp_path / name)

    plain, coded = (last_state(tmp_path / name).dense for name in ("plain", "coded"))
    assert 0 < np.linalg.norm(coded - plain) < 0.05 * np.linalg.norm(plain)


@pytest.mark.parametrize(("settings", "key"), [({"bits": 2}, "compression.bits"), ({"topk": 0.1}, "compression.topk")])
def test_a_ring_refuses_what_needs_something_kept_back(settings, key):
    with pytest.raises(SpecError) as refused:
        make(RunCompression(**settings), dense="ring")

    assert refused.value.key == key


def test_bits_and_topk_at_once_are_refused():
    with pytest.raises(SpecError, match="and bits is 8"):
        RunCompression(bits=8, topk=0.1)
