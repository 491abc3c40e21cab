"""Tensors between stages: from where a stage computes into a message, and out of it again, with few copies.

A GPU reads envelopes straight from shared memory, which is pinned when it is first seen, on a stream of its own while
others are being computed; what it sends is written straight into shared memory.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.codecs import codec_of, pack, unpack
from dovetail.data.streams import stream_number
from dovetail.runtime.blueprint import Blueprint
from dovetail.transport import Sendable, SharedMemoryFile, Unwritten

HALF = torch.bfloat16
SMALL = 256
"""Tensors of fewer numbers are not worth a codec."""


class ActivationTransport:
    """To and from one device; in 16 `bits` floats travel as bfloat16, in fewer by a codec, unbiased.

    With `half`, those of tensors too small for a codec travel as bfloat16, else as they are.
    """

    def __init__(self, device: torch.device, *, bits: int = 32, half: bool = False, seed: int = 0) -> None:
        """Keep the device; numbers are rounded by chance, that of the seed."""
        self._device, self._half = device, half or bits == 16
        self._codec, self._seed = codec_of(bits) if bits < 16 else None, seed
        self._is_cuda = device.type == "cuda"
        self._copies: Any = torch.cuda.Stream(device) if self._is_cuda else None  # type: ignore[no-untyped-call]
        self._answers: Any = torch.cuda.Stream(device) if self._is_cuda else None  # type: ignore[no-untyped-call]

    def pack(self, tensor: Tensor, *, exact: bool = False) -> Sendable:
        """Return a tensor, as it will be computed by then, as it goes into a message; `exact` numbers stay as they are.

        A GPU writes it when what was handed out so far is done, whatever is handed out after.
        """
        tensor = tensor.detach()
        if tensor.dtype == torch.int16 or (tensor.dtype == torch.uint8 and self._codec is not None):
            tensor = tensor.int()  # as int16 travels what is half, as uint8 what has a codec
        if self._codec is not None and tensor.is_floating_point() and not exact and tensor.numel() >= SMALL:
            self._seed += 1 << 32
            return pack(tensor.float().cpu().numpy(), self._codec, seed=self._seed)
        if tensor.is_floating_point():
            tensor = tensor.to(HALF).view(torch.int16) if self._half and not exact else tensor.float()
        tensor = tensor.contiguous()
        dtype: np.dtype[Any] = torch.empty(0, dtype=tensor.dtype).numpy().dtype
        if tensor.dtype == torch.int16:
            dtype = np.dtype(np.uint16)  # as which bfloat16 travels
        if tensor.device.type == "cpu":
            return tensor.numpy().view(dtype)

        computed = torch.cuda.current_stream(self._device).record_event()

        def write(place: Any) -> None:
            host = torch.from_numpy(place.view(np.int16) if dtype == np.uint16 else place)
            with torch.cuda.stream(self._answers):
                self._answers.wait_event(computed)
                host.copy_(tensor, non_blocking=True)
                self._answers.synchronize()

        return Unwritten(tuple(tensor.shape), dtype, write)

    def number(self, tensor: Tensor) -> float:
        """Return a single number that is computed, without waiting for what was handed out after it."""
        if not self._is_cuda:
            return float(tensor.detach())
        with torch.cuda.stream(self._answers):
            return float(tensor.detach().to("cpu"))

    def unpack(self, array: Any) -> Tensor:
        """Return an array of a message on the device; in host memory it is that of the message, and as short-lived."""
        if self._codec is not None and array.dtype == np.uint8:
            array = unpack(array, where="a message from another stage")
        is_half = array.dtype == np.uint16
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it cannot be written; nobody does
            tensor = torch.from_numpy(array.view(np.int16) if is_half else array)
        if self._is_cuda:
            with torch.cuda.stream(self._copies):
                tensor = tensor.to(self._device, non_blocking=True)
                tensor = tensor.view(HALF).float() if is_half else tensor
            tensor.record_stream(torch.cuda.current_stream(self._device))
            return tensor
        return tensor.view(HALF).float() if is_half else tensor

    def unpack_all(self, arrays: Sequence[Any]) -> list[Tensor]:
        """Return arrays of an envelope on the device, to be used at once."""
        tensors = [self.unpack(array) for array in arrays]
        self.await_copies()
        return tensors

    def await_copies(self) -> None:
        """Have what is computed from now on wait for everything that was unpacked."""
        if self._is_cuda:
            torch.cuda.current_stream(self._device).wait_stream(self._copies)

    def pin(self, shared: SharedMemoryFile) -> None:
        """Have the GPU copy from and to shared memory without help; where that cannot be, copies are slower."""
        if not self._is_cuda:
            return
        memory, cudart = shared.memory(), torch.cuda.cudart()  # type: ignore[no-untyped-call]
        address = memory.ctypes.data
        with torch.cuda.device(self._device):
            if int(cudart.cudaHostRegister(address, memory.nbytes, 0)) == 0:
                weakref.finalize(shared, cudart.cudaHostUnregister, address)
                return
            with suppress(RuntimeError):  # the error stays with the thread until somebody asks: not who comes next
                torch.ones(1, device=self._device).add_(1)


def activation_transport(blueprint: Blueprint, device: torch.device, name: str) -> ActivationTransport:
    """Return the way to and from a worker's device in as many bits as the run file says."""
    run = blueprint.run
    seed = stream_number(run.training.seed, f"travel/{name}")
    half = run.training.activations == "bfloat16"
    return ActivationTransport(device, bits=run.activation_bits, half=half, seed=seed)


def add_gradients(
    gradients: dict[str, Tensor], outputs: Mapping[str, Tensor], names: Sequence[str], tensors: Sequence[Tensor]
) -> None:
    """Add gradients of a stage's outputs that came back from a later one; whole numbers have none."""
    for name, tensor in zip(names, tensors, strict=True):
        if outputs[name].requires_grad:
            gradient = tensor.to(outputs[name].dtype)
            gradients[name] = gradients[name] + gradient if name in gradients else gradient


def run_back(outputs: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
    """Run the backward pass of a stage, with the gradients of its outputs."""
    if gradients:
        torch.autograd.backward([outputs[name] for name in gradients], list(gradients.values()))
