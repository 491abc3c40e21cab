"""Statistics of whole batches from parts of them."""

import msgspec
import numpy as np
import pytest
import torch

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import AddUp
from dovetail.runtime.server.norm_sums import NormSums, joined

BATCH = 10


def part_of(values):
    """Return what a worker brings of its samples: count, means, squared distances."""
    return np.concatenate([[len(values)], values.mean(axis=0), ((values - values.mean(axis=0)) ** 2).sum(axis=0)])


def brings(task, positions, *, place=0, back=False, offset=0, momentum=0.1):
    return AddUp(
        generation=0, step=0, task=task, worker=f"w{task}/1", place=place, back=back, positions=positions,
        batch=BATCH, offset=offset, momentum=momentum,
    )  # fmt: skip


@pytest.mark.parametrize("far", [0.0, 1e6])
def test_parts_come_to_what_the_whole_does_however_far_from_zero(far):
    values = np.random.default_rng(1).normal(far, 1.0, (100, 3))

    whole = joined([part_of(values[:7]), part_of(values[7:8]), part_of(values[8:])])

    assert whole[0] == 100
    np.testing.assert_allclose(whole[1:4], values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(whole[4:], values.var(axis=0), rtol=1e-6)


def test_all_are_answered_when_the_last_has_come_and_running_statistics_move_with_the_commit():
    values = torch.randn(BATCH, 2, dtype=torch.float64)
    norm = torch.nn.BatchNorm1d(2).double()
    norm(values)
    norms = NormSums()
    norms.load(np.array([0, 0, 1, 1], dtype=np.float32))

    assert norms.add(brings(0, 4), part_of(values[:4].numpy()), "first") == []
    answers = norms.add(brings(1, 6), part_of(values[4:].numpy()), "second")

    assert [who for who, _ in answers] == ["first", "second"]
    assert norms.to_save is None
    norms.commit()
    expected = torch.cat([norm.running_mean, norm.running_var]).numpy()
    np.testing.assert_allclose(norms.to_save, expected, rtol=1e-5)


def test_gradients_are_added_up():
    norms = NormSums()
    norms.add(brings(0, 4, back=True, offset=-1), np.array([0.0, 1.0, 2.0]), "first")
    answers = norms.add(brings(1, 6, back=True, offset=-1), np.array([0.0, 10.0, 20.0]), "second")

    assert [(who, sums.tolist()) for who, sums in answers] == [("first", [0, 11, 22]), ("second", [0, 11, 22])]


def test_a_step_that_is_thrown_away_moves_nothing():
    norms = NormSums()
    norms.load(np.zeros(4, dtype=np.float32))
    norms.add(brings(0, BATCH), part_of(np.ones((BATCH, 2))), "first")

    norms.discard()
    norms.commit()

    assert norms.to_save is None


def test_nobody_waits_for_a_task_without_samples():
    norms = NormSums()
    norms.add(brings(0, 4, offset=-1), part_of(np.ones((4, 2))), "first")

    answers = norms.add(brings(1, 6, place=-1), np.zeros(1), "second")

    assert [who for who, _ in answers] == ["second", "first"]


@pytest.mark.parametrize("how", ["another norm", "pushed"])
def test_whoever_waits_for_what_never_comes_is_told(how):
    norms = NormSums()
    norms.add(brings(0, 4, offset=-1), part_of(np.ones((4, 2))), "first")

    if how == "pushed":
        assert norms.pushed(1, 6) == [("first", None)]
    else:
        answers = norms.add(brings(1, 6, place=1, offset=-1), part_of(np.ones((6, 2))), "second")
        assert answers == [("first", None), ("second", None)]


@pytest.mark.parametrize(
    ("sums", "offset"), [(np.zeros(4), 0), (np.zeros(5, dtype=np.float32), 0), (np.zeros(7), 0), (np.zeros(5), 1)]
)
def test_what_fits_no_norm_is_refused(sums, offset):
    norms = NormSums()
    norms.load(np.zeros(4, dtype=np.float32))

    with pytest.raises(TrainingError):
        norms.add(brings(0, 4, offset=offset), sums, "first")


def test_what_was_refused_is_in_nobodys_way():
    norms = NormSums()
    norms.load(np.zeros(4, dtype=np.float32))
    with pytest.raises(TrainingError):
        norms.add(brings(0, 4, offset=3), np.zeros(5), "stranger")

    assert norms.add(brings(0, 4), part_of(np.ones((4, 2))), "first") == []
    assert len(norms.add(brings(1, 6), part_of(np.ones((6, 2))), "second")) == 2


def test_what_comes_twice_counts_once():
    values = np.random.default_rng(2).normal(size=(BATCH, 2))
    norms = NormSums()
    norms.load(np.array([0, 0, 1, 1], dtype=np.float32))
    norms.add(brings(0, 4), part_of(values[:4]), "first")
    assert norms.add(brings(0, 4), part_of(values[:4]), "first again") == []

    answers = norms.add(brings(1, 6), part_of(values[4:]), "second")
    late = norms.add(brings(1, 6), part_of(values[4:]), "second again")

    assert [who for who, _ in answers + late] == ["first", "first again", "second", "second again"]
    for _, sums in answers + late:
        np.testing.assert_allclose(sums, [BATCH, *values.mean(axis=0), *values.var(axis=0)])


def test_a_single_value_takes_running_statistics_and_leaves_them_alone():
    running = np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)
    norms = NormSums()
    norms.load(running)
    brought = msgspec.structs.replace(brings(0, 1), batch=1)

    ((_, sums),) = norms.add(brought, part_of(np.array([[7.0, 8.0]])), "alone")
    norms.commit()

    assert sums.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert norms.running.tolist() == running.tolist()
