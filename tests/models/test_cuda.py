"""Models on a GPU: the same draws, the same losses, the same gradients."""

import pytest
import torch

from dovetail.models import make_optimizer, train_step
from dovetail.models.draws import sample_words
from tests.models.makers import ALL_MODELS, gradients, make_batch, make_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_draws_on_a_gpu_are_those_on_the_cpu():
    ids = torch.tensor([0, 1, 2**50, 77])

    assert torch.equal(sample_words(5, ids.cuda(), 9).cpu(), sample_words(5, ids, 9))


@pytest.mark.parametrize("name", ALL_MODELS)
def test_losses_and_gradients_on_a_gpu_are_those_on_the_cpu(name):
    here, there, batch = make_model(name, dropout=0.2), make_model(name, dropout=0.2).cuda(), make_batch(name)
    here(batch).backward()
    there(batch.to("cuda")).backward()

    expected, found = gradients(here), gradients(there)
    assert all(torch.allclose(found[key].cpu(), expected[key], rtol=1e-3, atol=1e-4) for key in expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_a_step_on_a_gpu_is_that_on_the_cpu(optimizer):
    here, there, batch = make_model("ctr-dnn"), make_model("ctr-dnn").cuda(), make_batch("ctr-dnn")
    train_step(here, batch, make_optimizer(here, optimizer, 0.01))
    train_step(there, batch.to("cuda"), make_optimizer(there, optimizer, 0.01))

    for expected, found in zip(here.parameters(), there.parameters(), strict=True):
        assert torch.allclose(found.cpu(), expected, rtol=1e-3, atol=2e-3)


def test_pinned_batches_arrive_whole():
    batch = make_batch("ctr-dnn")
    arrived = batch.pinned().to("cuda", non_blocking=True)

    torch.cuda.synchronize()
    assert all(torch.equal(a.cpu(), b) for a, b in zip(arrived.tensors(), batch.tensors(), strict=True))
