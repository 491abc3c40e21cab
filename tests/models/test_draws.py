"""Randomness that belongs to samples."""

import numpy as np
import pytest
import torch

from dovetail.models import ModelError, SampleDropout
from dovetail.models.draws import sample_sixteenths, sample_units, sample_words, signed_stream
from dovetail.models.zoo.matchnet import Negatives
from dovetail.models.zoo.nce import LogUniform
from dovetail.splitmix import mix


def test_words_are_those_of_the_unsigned_mixing():
    stream = signed_stream(7, "test")
    words = sample_words(stream, torch.tensor([0, 5, 2**40]), 3)

    golden = 0x9E3779B97F4A7C15
    for row, sample in enumerate((0, 5, 2**40)):
        own = int(mix(np.uint64((sample * golden + stream) % 2**64))) % 2**64
        for position in range(3):
            expected = int(mix(np.uint64((own + (position + 1) * golden) % 2**64))) % 2**64
            assert int(words[row, position]) % 2**64 == expected


def test_draws_do_not_depend_on_the_rest_of_the_batch():
    ids = torch.tensor([3, 999, 17, 4])
    together = sample_units(1, ids, 5)

    assert torch.equal(together[[2, 0]], sample_units(1, torch.tensor([17, 3]), 5))
    assert torch.equal(together[:, :2], sample_units(1, ids, 2))


def test_units_and_sixteenths_are_even():
    units = sample_units(signed_stream(0, "u"), torch.arange(5000), 20)
    sixteenths = sample_sixteenths(signed_stream(0, "u"), torch.arange(5000), 22).double()

    assert float(units.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(units.var()) == pytest.approx(1 / 12, abs=0.002)
    assert sixteenths.shape == (5000, 22)
    assert float(sixteenths.mean()) == pytest.approx(-0.5, abs=300)
    assert float(sixteenths.var()) == pytest.approx(65536**2 / 12, rel=0.02)


def test_dropout_drops_its_share_and_keeps_the_mean():
    dropout = SampleDropout(0.3, seed=1, name="d")
    out = dropout(torch.ones(2000, 50), torch.arange(2000))

    assert float((out == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(out.mean()) == pytest.approx(1.0, abs=0.02)


def test_dropout_masks_belong_to_samples_and_layers():
    ids = torch.tensor([10, 20, 30])
    ones = torch.ones(3, 40)
    a = SampleDropout(0.5, seed=1, name="a")

    assert torch.equal(a(ones, ids)[1:2], a(ones[:1], torch.tensor([20])))
    assert not torch.equal(a(ones, ids), SampleDropout(0.5, seed=1, name="b")(ones, ids))
    assert not torch.equal(a(ones, ids), SampleDropout(0.5, seed=2, name="a")(ones, ids))


def test_dropout_is_off_in_evaluation_and_takes_any_shape():
    dropout = SampleDropout(0.5, seed=0, name="d")
    cube = torch.ones(4, 3, 5)

    assert dropout(cube, torch.arange(4)).shape == cube.shape
    assert dropout(torch.ones(0, 5), torch.arange(0)).shape == (0, 5)
    dropout.eval()
    assert torch.equal(dropout(cube, torch.arange(4)), cube)


def test_a_dropout_of_one_is_refused():
    with pytest.raises(ModelError, match=r"dropout of `d` is 1\.0"):
        SampleDropout(1.0, seed=0, name="d")


def test_negatives_are_even_over_the_pool_and_belong_to_samples():
    negatives = Negatives(num_items=7, num_negatives=20, seed=0)
    drawn = negatives(torch.arange(5000))

    counts = torch.bincount(drawn.reshape(-1), minlength=7)
    assert counts.shape == (7,)
    assert (counts - 100_000 / 7).abs().max() < 600  # five standard errors
    assert torch.equal(drawn[42:43], negatives(torch.tensor([42])))


def test_noise_rows_come_as_often_as_their_chances_say():
    noise = LogUniform(50)
    chances = noise.log_chance(torch.arange(50)).exp()
    rows = noise.rows(sample_units(3, torch.arange(20_000), 10))

    assert float(chances.sum()) == pytest.approx(1.0, abs=1e-6)
    assert (torch.bincount(rows.reshape(-1), minlength=50) / 200_000 - chances).abs().max() < 0.005
