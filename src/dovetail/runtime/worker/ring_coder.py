"""Gradients around a ring in fewer bits: every member sends its payload to all others, and all add up the same.

Rounding is unbiased and nothing is kept back: there is no state that a ring, which is formed anew so often, could lose.
A member's bytes are (n - 1) payloads, against 2 (n - 1) / n of the vector itself: n / 2 x bits / 32 times as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.codecs import Codec, codec_of, pack, unpack
from dovetail.data.streams import stream_number
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.dense.exempt import exact_places


class RingCoder:
    """Turns parts of a member's gradients into payloads, and all members' payloads into their sum."""

    def __init__(self, codec: Codec, blueprint: Blueprint, offset: int, seed: int) -> None:
        """Sum vectors that begin at `offset` of the dense parameters."""
        self._codec, self._entries, self._offset = codec, blueprint.dense, offset
        self._seed = seed

    def payload(self, vector: Tensor, part: slice) -> Tensor:
        """Return the payload of a part of this member's gradients."""
        self._seed += 1 << 32
        values = vector[part].detach().cpu().numpy()
        exact = self._exact(part)
        packed: NDArray[Any] = pack(values, self._codec, seed=self._seed, exact=exact)
        return torch.from_numpy(packed)

    def total(self, payloads: Sequence[Tensor], part: slice) -> Tensor:
        """Return the sum of all members' gradients, in the order of their ranks: every member finds the same bits."""
        exact, shape = self._exact(part), (part.stop - part.start,)
        total = np.zeros(shape, dtype=np.float32)
        for payload in payloads:
            total += unpack(payload.numpy(), shape, exact=exact, where="a member of the ring")
        return torch.from_numpy(total)

    def _exact(self, part: slice) -> NDArray[np.int64]:
        """Return where in a part numbers are that no codec touches."""
        return exact_places(self._entries, slice(self._offset + part.start, self._offset + part.stop))


def ring_coder(blueprint: Blueprint, offset: int, name: str) -> RingCoder | None:
    """Return the coder of a member, or None where gradients travel as they are."""
    bits = blueprint.run.compression.bits
    codec = codec_of(bits) if isinstance(bits, int) else None
    seed = stream_number(blueprint.run.training.seed, f"ring/{name}") >> 1
    return RingCoder(codec, blueprint, offset, seed) if codec is not None else None
