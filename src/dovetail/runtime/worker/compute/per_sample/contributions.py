"""What samples contribute to the gradient of one dense parameter, kept as what it is made of.

For the weight of a linear layer, with inputs a and gradients b of outputs, T vectors a sample, the gradient of sample i
is sum over t of b[i, t] a[i, t]^T. It is not written out where that takes more than its norm (Goodfellow, 2015; Li et
al., 2022):

    |g_i|^2 = sum over t, u of (a[i, t] . a[i, u]) (b[i, t] . b[i, u])

and the sum of gradients times factors c is one product of matrices: sum over i, t of c_i b[i, t] a[i, t]^T.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

MOST_NUMBERS = 1 << 24
"""Written out at once, where gradients of samples have to be."""


class Contributions(Protocol):
    """The gradients of all samples for one parameter."""

    def squares(self) -> Tensor:
        """Return the square of the norm of each sample's gradient: float64 [n]."""
        ...

    def sum(self, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor."""
        ...

    def each(self) -> Tensor:
        """Return the gradient of every sample, written out."""
        ...


class Written:
    """Gradients that are written out: of biases, of layers that normalise, and of those that no rule is known for."""

    def __init__(self, gradients: Tensor) -> None:
        """Keep one gradient a sample: [n, ...]."""
        self._gradients = gradients

    def squares(self) -> Tensor:
        """Return the square of the norm of each sample's gradient."""
        return self._gradients.flatten(1).square().sum(dim=1, dtype=torch.float64)

    def sum(self, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor."""
        total: Tensor = torch.tensordot(factors, self._gradients, dims=1)
        return total

    def each(self) -> Tensor:
        """Return the gradient of every sample."""
        return self._gradients


class OuterProducts:
    """Gradients of a linear layer's weight: the sums of products of what came in and what came back."""

    def __init__(self, inputs: Tensor, gradients: Tensor) -> None:
        """Keep inputs [n, T, in] and the gradients of outputs [n, T, out]."""
        self._inputs, self._gradients = inputs, gradients

    def squares(self) -> Tensor:
        """Return the square of the norm of each sample's gradient, by products of vectors or of those of vectors."""
        inputs, gradients = self._inputs, self._gradients
        num_samples, length, size = len(inputs), inputs.shape[1], inputs.shape[2] * gradients.shape[2]
        if length == 1:
            return _squares(inputs[:, 0]) * _squares(gradients[:, 0])
        if length * length <= size:
            some = max(1, MOST_NUMBERS // (length * length))
            parts = [
                (torch.bmm(a, a.transpose(1, 2)) * torch.bmm(b, b.transpose(1, 2))).sum(dim=(1, 2), dtype=torch.float64)
                for a, b in zip(inputs.split(some), gradients.split(some), strict=True)  # type: ignore[no-untyped-call]
            ]
        else:
            some = max(1, MOST_NUMBERS // size)
            parts = [
                torch.bmm(b.transpose(1, 2), a).square().sum(dim=(1, 2), dtype=torch.float64)
                for a, b in zip(inputs.split(some), gradients.split(some), strict=True)  # type: ignore[no-untyped-call]
            ]
        found = torch.cat(parts) if parts else inputs.new_zeros(num_samples, dtype=torch.float64)
        return found.clamp_(min=0.0)

    def sum(self, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor: one product of matrices."""
        scaled = self._gradients * factors[:, None, None]
        return scaled.flatten(0, 1).T @ self._inputs.flatten(0, 1)

    def each(self) -> Tensor:
        """Return the gradient of every sample."""
        return torch.bmm(self._gradients.transpose(1, 2), self._inputs)


class LookedUp:
    """Gradients of a dense table's rows, of which a sample may look one up several times."""

    def __init__(self, ids: Tensor, gradients: Tensor, num_rows: int) -> None:
        """Keep ids [n, T] and the gradients of what was looked up [n, T, width]."""
        self._ids, self._gradients, self._num_rows = ids, gradients, num_rows

    def squares(self) -> Tensor:
        """Return the square of the norm of each sample's gradient: those of one row are added up first."""
        num_samples = len(self._ids)
        samples = torch.arange(num_samples, device=self._ids.device)
        flat = (samples[:, None] * self._num_rows + self._ids).flatten()
        distinct, places = torch.unique(flat, return_inverse=True)
        width = self._gradients.shape[2]
        sums = self._gradients.new_zeros(len(distinct), width).index_add_(0, places, self._gradients.flatten(0, 1))
        squares = self._gradients.new_zeros(num_samples, dtype=torch.float64)
        return squares.index_add_(0, distinct // self._num_rows, sums.square().sum(dim=1, dtype=torch.float64))

    def sum(self, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor."""
        scaled = (self._gradients * factors[:, None, None]).flatten(0, 1)
        return scaled.new_zeros(self._num_rows, scaled.shape[1]).index_add_(0, self._ids.flatten(), scaled)

    def each(self) -> Tensor:
        """Return the gradient of every sample."""
        num_samples = len(self._ids)
        whole = self._gradients.new_zeros(num_samples * self._num_rows, self._gradients.shape[2])
        samples = torch.arange(num_samples, device=self._ids.device)
        whole.index_add_(0, (samples[:, None] * self._num_rows + self._ids).flatten(), self._gradients.flatten(0, 1))
        return whole.view(num_samples, self._num_rows, -1)


def together(found: list[Contributions]) -> Contributions:
    """Return what several uses of one parameter come to: the gradient of a sample is the sum over them."""
    if len(found) == 1:
        return found[0]
    products = [each for each in found if isinstance(each, OuterProducts)]
    if len(products) == len(found):
        return OuterProducts(
            torch.cat([each._inputs for each in products], dim=1),
            torch.cat([each._gradients for each in products], dim=1),
        )
    total = found[0].each().clone()
    for each in found[1:]:
        total += each.each()
    return Written(total)


def _squares(vectors: Tensor) -> Tensor:
    """Return the square of the norm of each vector."""
    squares: Tensor = torch.linalg.vecdot(vectors, vectors)
    return squares.double()
