"""Losses by name: one value a sample, never a mean over samples. Any split of a batch adds up to the same."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.errors import did_you_mean
from dovetail.models.answers import Heads, LossSpec, OwnLoss, Scores, Times
from dovetail.models.block import Block
from dovetail.models.errors import ModelError
from dovetail.models.loss_names import NO_LOSS, OWN_LOSSES, base_name, weight_and_name
from dovetail.references import import_function


class Logistic(nn.Module):
    """The log-loss of one score a sample, or of one for each of its labels, then averaged over them."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the log-loss of sigmoid(score) of every sample."""
        scores = _like_labels("logistic", scores, labels)
        return _each(functional.binary_cross_entropy_with_logits(scores, labels, reduction="none"))


class CrossEntropy(nn.Module):
    """The log-loss of one score a class, for as many classes as the model has scores."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the log-loss of softmax(scores) of every sample; labels are classes, or chances of the same shape."""
        if scores.dim() < 2 or scores.shape[-1] < 2:
            raise _shape_error("cross-entropy", "[n, classes]", scores)
        if labels.shape == scores.shape:
            return _each(-(functional.log_softmax(scores, dim=-1) * labels).sum(dim=-1))
        if labels.numel() * scores.shape[-1] != scores.numel():
            raise _shape_error("cross-entropy", f"{list(labels.shape)} x classes", scores)
        flat = functional.cross_entropy(scores.flatten(0, -2), labels.reshape(-1).long(), reduction="none")
        return _each(flat.view(labels.shape[0], -1))


class Squared(nn.Module):
    """The squared distance between a score and its label, averaged over a sample's labels."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the value of every sample."""
        return _each((_like_labels("squared", scores, labels) - labels).square())


class Absolute(nn.Module):
    """The distance between a score and its label, averaged over a sample's labels."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the value of every sample."""
        return _each((_like_labels("absolute", scores, labels) - labels).abs())


class Huber(nn.Module):
    """Half the squared distance up to 1, beyond that the distance less a half, averaged over a sample's labels."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the value of every sample."""
        return _each(functional.huber_loss(_like_labels("huber", scores, labels), labels, reduction="none"))


class Hinge(nn.Module):
    """How far the first candidate fails to beat each of the others by `margin`."""

    def __init__(self, margin: float = 0.8) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return, for clicked samples, the mean over negatives of max(0, margin - first + other); 0 for others."""
        if scores.dim() != 2 or scores.shape[1] < 2:
            raise _shape_error("hinge", "[n, 1 + negatives]", scores)
        return torch.relu(self.margin - scores[:, :1] + scores[:, 1:]).mean(dim=1) * labels


class CandidateSoftmax(nn.Module):
    """The log-loss of picking the first of several candidates."""

    def __init__(self, sharpness: float = 1.0) -> None:
        """Keep the factor of the scores; for cosines, which end at 1, take 10 or more."""
        super().__init__()
        self.sharpness = sharpness

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return -log softmax(sharpness * scores)[first] of clicked samples, 0 for others."""
        if scores.dim() != 2 or scores.shape[1] < 2:
            raise _shape_error("softmax", "[n, 1 + negatives]", scores)
        return -functional.log_softmax(self.sharpness * scores, dim=1)[:, 0] * labels


class OfPyTorch(nn.Module):
    """A loss of PyTorch's, which would average over a batch: taken sample by sample instead.

    What it averages over within a sample stays averaged. With class weights or `ignore_index` PyTorch divides by what
    is left of a batch; here a step divides by its samples.
    """

    def __init__(self, loss: nn.Module) -> None:
        """Keep a copy that reduces nothing."""
        super().__init__()
        self._sums = getattr(loss, "reduction", "none") == "sum"
        self.inner = copy.deepcopy(loss)
        self.inner.reduction = "none"  # type: ignore[assignment]
        self._by_class = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss | nn.MultiMarginLoss)

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the value of every sample."""
        name = type(self.inner).__name__
        if not self._by_class:
            values = self.inner(_like_labels(name, scores, labels), labels)
        else:
            values = self.inner(scores, labels if labels.shape == scores.shape else labels.long())
        return values.flatten(1).sum(dim=1) if self._sums and values.dim() > 1 else _each(values)


class OneValueEach(nn.Module):
    """A loss of the user's own, held to one value a sample."""

    def __init__(self, loss: Callable[[Any, Tensor], Tensor], name: str) -> None:
        """Keep it, and what errors call it."""
        super().__init__()
        self.inner, self._name = loss, name

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """Return the value of every sample."""
        values = self.inner(scores, labels)
        if not isinstance(values, Tensor) or tuple(values.shape) != (labels.shape[0],):
            got = f"shape {list(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
            raise ModelError(
                f"the loss `{self._name}` returned {got} for {labels.shape[0]} samples",
                hint="return one value a sample, of shape [n]: neither their mean nor their sum, as a batch is "
                'computed in parts (in PyTorch, reduction="none")',
            )
        return values


class Summed(nn.Module):
    """The end of a graph: the values of all samples added up, each as often as it counts."""

    def __init__(self, loss: nn.Module) -> None:
        """Keep what gives one value a sample."""
        super().__init__()
        self.each = loss

    def forward(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the sum."""
        return weighted_sum(self.each(scores, labels), weights)


LOSSES: dict[str, Callable[[], nn.Module]] = {
    "logistic": Logistic,
    "cross-entropy": CrossEntropy,
    "squared": Squared,
    "absolute": Absolute,
    "huber": Huber,
    "hinge": Hinge,
    "softmax": lambda: CandidateSoftmax(sharpness=10.0),
}


def make_loss(loss: LossSpec | Callable[..., Any]) -> nn.Module:
    """Return a module that gives one value a sample.

    `loss` is a name, `package.module:function` (a function of scores and labels, or one that returns such a module), a
    name for each head, or an object: a module of PyTorch's, or anything that is called with scores and labels.
    """
    if isinstance(loss, str):
        return _by_name(loss)
    if isinstance(loss, Mapping):
        return Heads({name: None if part == NO_LOSS else make_loss(part) for name, part in loss.items()})
    if not callable(loss):
        raise ModelError(f"a {type(loss).__name__} is not a loss", hint="give a name, a function or a module")
    if isinstance(loss, nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
        raise ModelError(
            f"the loss `{type(loss).__name__}` has parameters of its own",
            hint="put them into the model, which is trained",
        )
    if isinstance(loss, nn.modules.loss._Loss):
        return OfPyTorch(loss)
    known = (*(maker for maker in LOSSES.values() if isinstance(maker, type)), OfPyTorch, OneValueEach)
    if isinstance(loss, nn.Module) and isinstance(loss, (*known, Heads, OwnLoss, Times)):
        return loss
    return OneValueEach(loss, getattr(loss, "__name__", type(loss).__name__))


def _by_name(loss: str) -> nn.Module:
    """Return the loss of a name; of `0.3 * NAME`, three tenths of it."""
    weight, name = weight_and_name(loss)
    if name != loss:
        return Times(weight, make_loss(name))
    if loss in LOSSES:
        return LOSSES[loss]()
    if loss in OWN_LOSSES:
        return OwnLoss(loss)
    if ":" not in loss:
        raise ModelError(
            f"there is no loss `{loss}`",
            hint=did_you_mean(loss, [*LOSSES, *OWN_LOSSES]) + ", or package.module:function",
        )
    found = import_function(loss, what="loss", error=ModelError)
    return make_loss(found() if _makes_a_loss(found) else found)


def loss_block(loss: LossSpec, *, name: str = "loss") -> Block:
    """Return the last block of a graph: a loss, summed over samples."""
    if isinstance(loss, str) and base_name(loss) in OWN_LOSSES:
        raise ModelError(
            f"the loss is `{loss}`, the model's own, and the model is divided into layers",
            hint="train it in one piece, or have it answer scores and name the loss",
        )
    return Block(name=name, kind="loss", module=Summed(make_loss(loss)), reads=("labels", "weights"))


def weighted_sum(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the sum of one value a sample, each times its weight where there are weights."""
    return values.sum() if weights is None else (values * weights).sum()


def _makes_a_loss(function: Callable[..., Any]) -> bool:
    """Say whether a function is called without arguments for a loss, rather than being one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return isinstance(function, type)
    needed = [each for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    return isinstance(function, type) or not needed


def _like_labels(loss: str, scores: Tensor, labels: Tensor) -> Tensor:
    """Return scores in the shape of the labels: [n, 1] is [n]."""
    if scores.shape == labels.shape:
        return scores
    if scores.numel() != labels.numel() or scores.shape[0] != labels.shape[0]:
        expected = "[n] or [n, 1]" if labels.dim() == 1 else f"{['n', *labels.shape[1:]]}".replace("'", "")
        raise _shape_error(loss, expected, scores)
    return scores.reshape(labels.shape)


def _each(values: Tensor) -> Tensor:
    """Return the mean over all but the first dimension."""
    return values if values.dim() == 1 else values.flatten(1).mean(dim=1)


def _shape_error(loss: str, expected: str, scores: Tensor) -> ModelError:
    """Return the complaint that a loss was given scores of the wrong shape."""
    return ModelError(
        f"the loss `{loss}` needs scores of shape {expected}, the model gives {list(scores.shape)}",
        hint="choose another loss, or change the model's last layer",
    )
