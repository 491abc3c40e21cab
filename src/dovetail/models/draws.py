"""Random tensors that belong to samples, the same on every device and however a batch is split; dropout from them.

A batch may be split or reordered in any way: a sample keeps its draws. The mixing is SplitMix64 on signed 64-bit
numbers, which wrap around as unsigned ones do.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dovetail.data.streams import stream_number
from dovetail.models.errors import ModelError
from dovetail.splitmix import FACTORS, GOLDEN_NUMBER

_GOLDEN, _FIRST_FACTOR, _SECOND_FACTOR = (word - (1 << 64) for word in (GOLDEN_NUMBER, *FACTORS))
_53_BITS = (1 << 53) - 1


def signed_stream(seed: int, purpose: str) -> int:
    """Return the stream of a seed for one purpose as a signed number, the only kind that tensors hold."""
    stream = stream_number(seed, purpose)
    return stream - (1 << 64) if stream >= 1 << 63 else stream


def sample_words(stream: int, sample_ids: Tensor, num_words: int) -> Tensor:
    """Return 64 random bits for each of `num_words` positions of every sample: int64 [n, num_words]."""
    own = _mix(sample_ids * _GOLDEN + stream)
    positions = torch.arange(1, num_words + 1, device=sample_ids.device) * _GOLDEN
    return _mix(own[:, None] + positions[None, :])


def sample_units(stream: int, sample_ids: Tensor, num_draws: int) -> Tensor:
    """Return uniform numbers from 0 up to but not including 1: float64 [n, num_draws]."""
    return (sample_words(stream, sample_ids, num_draws) & _53_BITS).to(torch.float64) * 2.0**-53


def sample_sixteenths(stream: int, sample_ids: Tensor, num_draws: int) -> Tensor:
    """Return whole numbers from -32768 to 32767, four from each hash: int16 [n, num_draws]."""
    words = sample_words(stream, sample_ids, (num_draws + 3) // 4)
    return words.view(torch.int16)[:, :num_draws]


def _mix(word: Tensor) -> Tensor:
    """Return the words mixed, in new memory; a signed shift drags the sign along, so its copies are cut off."""
    word = (word ^ ((word >> 30) & 0x3FFFFFFFF)).mul_(_FIRST_FACTOR)
    word = (word ^ ((word >> 27) & 0x1FFFFFFFFF)).mul_(_SECOND_FACTOR)
    return word ^ ((word >> 31) & 0x1FFFFFFFF)


class SampleDropout(nn.Module):
    """Sets a share of each sample's activations to zero, chosen by (seed, name, sample id), and scales the rest up.

    The share is a multiple of 1/65536: 0.1 becomes 0.100006.
    """

    def __init__(self, share: float, *, seed: int, name: str) -> None:
        """Keep the share to drop and the stream of this layer."""
        super().__init__()
        if not 0.0 <= share < 1.0:
            raise ModelError(f"dropout of `{name}` is {share}", hint="set it to a number from 0 up to but below 1")
        self._dropped = round(share * 65536)
        self._stream = signed_stream(seed, f"dropout/{name}")

    def forward(self, activations: Tensor, sample_ids: Tensor) -> Tensor:
        """Return the activations ([n, ...]) with this batch's share set to zero; in evaluation, as they are."""
        if not self.training or not self._dropped:
            return activations
        draws = sample_sixteenths(self._stream, sample_ids, activations[0].numel() if activations.shape[0] else 0)
        kept = (draws >= self._dropped - 32768).reshape(activations.shape)
        return activations * kept * (65536.0 / (65536 - self._dropped))
