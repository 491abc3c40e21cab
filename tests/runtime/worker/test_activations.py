"""Tensors in letters: what arrives is what was sent, in half precision to its 8 bits."""

import pytest
import torch

from dovetail.runtime.worker.stages.activations import ActivationTransport

CPU = torch.device("cpu")
DEVICES = [CPU, *([torch.device("cuda")] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(5, 3),
        torch.arange(4),
        torch.tensor([True, False]),
        torch.zeros(0, 2),
        torch.tensor([1, 2, 300], dtype=torch.int16),
        torch.randn(4, 2).t(),
        torch.randn(3, dtype=torch.bfloat16),
    ],
    ids=["floats", "whole", "bool", "empty", "int16", "turned", "bfloat16"],
)
def test_what_arrives_is_what_was_sent(device, half, tensor):
    travel = ActivationTransport(device, bits=16 if half else 32)
    sent = travel.pack(tensor.to(device))

    arrived = travel.unpack_all([sent.written() if hasattr(sent, "written") else sent])[0]

    assert arrived.device.type == device.type
    rtol = 2**-7 if half and tensor.is_floating_point() else 0.0
    torch.testing.assert_close(arrived.cpu().double(), tensor.double(), rtol=rtol, atol=0.0)
    assert arrived.is_floating_point() == tensor.is_floating_point()


def test_exact_numbers_are_not_halved():
    travel, tensor = ActivationTransport(CPU, bits=16), torch.randn(50)

    assert torch.equal(travel.unpack_all([travel.pack(tensor, exact=True)])[0], tensor)
