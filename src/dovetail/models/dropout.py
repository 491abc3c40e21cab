"""Dropout that does not care how a batch is split."""

from __future__ import annotations

from torch import Tensor, nn

from dovetail.models.draws import sample_sixteenths, signed_stream
from dovetail.models.errors import ModelError


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
