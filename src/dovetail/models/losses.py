"""Losses by name. Each is a sum over samples, never a mean: any split of a batch adds up to the same."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.errors import did_you_mean
from dovetail.models.block import Block
from dovetail.models.errors import ModelError
from dovetail.models.imports import import_function


class Logistic(nn.Module):
    """The log-loss of one score a sample."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over samples of the log-loss of sigmoid(score)."""
        if scores.numel() != labels.shape[0]:
            raise _shape_error("logistic", "[n] or [n, 1]", scores)
        return functional.binary_cross_entropy_with_logits(scores.reshape(-1), labels, reduction="sum")


class CrossEntropy(nn.Module):
    """The log-loss of two scores a sample: not clicked, clicked."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over samples of the log-loss of softmax(scores)."""
        if scores.dim() != 2 or scores.shape[1] != 2:
            raise _shape_error("cross-entropy", "[n, 2]", scores)
        return functional.cross_entropy(scores, labels.long(), reduction="sum")


class Squared(nn.Module):
    """The squared distance between one score a sample and its label."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over samples."""
        if scores.numel() != labels.shape[0]:
            raise _shape_error("squared", "[n] or [n, 1]", scores)
        return functional.mse_loss(scores.reshape(-1), labels, reduction="sum")


class Hinge(nn.Module):
    """How far the first candidate fails to beat each of the others by `margin`."""

    def __init__(self, margin: float = 0.8) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over clicked samples of the mean over negatives of max(0, margin - first + other)."""
        if scores.dim() != 2 or scores.shape[1] < 2:
            raise _shape_error("hinge", "[n, 1 + negatives]", scores)
        misses = torch.relu(self.margin - scores[:, :1] + scores[:, 1:]).mean(dim=1)
        return (misses * labels).sum()


class CandidateSoftmax(nn.Module):
    """The log-loss of picking the first of several candidates."""

    def __init__(self, sharpness: float = 1.0) -> None:
        """Keep the factor of the scores; for cosines, which end at 1, take 10 or more."""
        super().__init__()
        self.sharpness = sharpness

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over clicked samples of -log softmax(sharpness * scores)[first]."""
        if scores.dim() != 2 or scores.shape[1] < 2:
            raise _shape_error("softmax", "[n, 1 + negatives]", scores)
        return -(functional.log_softmax(self.sharpness * scores, dim=1)[:, 0] * labels).sum()


LOSSES: dict[str, Callable[[], nn.Module]] = {
    "logistic": Logistic,
    "cross-entropy": CrossEntropy,
    "squared": Squared,
    "hinge": Hinge,
    "softmax": lambda: CandidateSoftmax(sharpness=10.0),
}


def loss_block(loss: str, *, name: str = "loss") -> Block:
    """Return the last block of a model: the loss by its name, or `package.module:function` returning a module of it."""
    if ":" in loss:
        module = import_function(loss, what="loss")()
        if not isinstance(module, nn.Module):
            raise ModelError(
                f"`{loss}` returned a {type(module).__name__}, not a module", hint="return module(scores, labels)"
            )
    elif loss in LOSSES:
        module = LOSSES[loss]()
    else:
        raise ModelError(f"there is no loss `{loss}`", hint=did_you_mean(loss, LOSSES))
    return Block(name=name, kind="loss", module=module, reads=("labels",))


def _shape_error(loss: str, expected: str, scores: Tensor) -> ModelError:
    """Return the complaint that a loss was given scores of the wrong shape."""
    return ModelError(
        f"the loss `{loss}` needs scores of shape {expected}, the model gives {list(scores.shape)}",
        hint="choose another loss, or change the model's last layer",
    )
