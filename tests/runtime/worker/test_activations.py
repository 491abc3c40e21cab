"""Tensors in messages: what arrives is what was sent, in half precision to its 8 bits."""

import msgspec
import numpy as np
import pytest
import torch

from dovetail.runtime.worker.stages.activations import SMALL, ActivationTransport, activation_transport
from dovetail.spec.run_sections import RunCompression
from tests.runtime.coordinator.blueprints import make_blueprint

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


@pytest.mark.parametrize(("bits", "half", "wanted"), [(8, True, np.uint16), (8, False, np.float32)])
def test_what_is_too_small_for_a_codec_travels_in_the_precision_that_was_asked_for_beside_it(bits, half, wanted):
    transport = ActivationTransport(CPU, bits=bits, half=half)
    small, large = torch.randn(SMALL - 1), torch.randn(SMALL)

    assert transport.pack(small).dtype == wanted
    assert transport.pack(large).dtype == np.uint8
    arrived = transport.unpack(transport.pack(small))
    torch.testing.assert_close(arrived, small.bfloat16().float() if half else small, rtol=0.0, atol=0.0)
    assert torch.equal(transport.unpack(transport.pack(small, exact=True)), small)


def test_a_run_that_asks_for_both_gets_both():
    blueprint = make_blueprint(activations="bfloat16")
    run = msgspec.structs.replace(blueprint.run, compression=RunCompression(activations=8))
    transport = activation_transport(msgspec.structs.replace(blueprint, run=run), CPU, "worker")

    assert transport.pack(torch.randn(SMALL - 1)).dtype == np.uint16
    assert transport.pack(torch.randn(SMALL)).dtype == np.uint8
