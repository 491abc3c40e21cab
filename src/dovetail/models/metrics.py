"""How good a model's answers are, batch by batch: each metric can be merged with that of another worker."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from dovetail.errors import MissingExtraError, did_you_mean
from dovetail.models.answers import Scores, heads_of, label_of
from dovetail.models.errors import ModelError
from dovetail.models.ratios import ratio_value
from dovetail.references import import_function


class Foreign:
    """A metric of another library, such as torchmetrics: anything with `update(scores, targets)` and `compute()`.

    It gets chances for one score a sample, and raw scores otherwise; labels that are whole numbers come as such. Where
    the model answers several parts it gets them all, as they are, with all labels.
    """

    def __init__(self, inner: Any, name: str) -> None:
        self._inner, self._name = inner, name

    def update(self, scores: Scores, targets: Tensor) -> None:
        """Take in the answers to a batch, and what was true."""
        try:
            self._inner.update(*self._given(scores, targets))
        except Exception as problem:  # whatever somebody else's code raises
            raise self._failed(problem, scores, targets) from problem

    def _given(self, scores: Scores, targets: Tensor) -> tuple[Any, Tensor]:
        """Return what the metric is called with."""
        targets = targets.detach().cpu()
        if not isinstance(scores, Tensor):
            return {name: part.detach().cpu() for name, part in heads_of(scores).items()}, targets
        scores = scores.detach().cpu()
        if bool((targets == targets.round()).all()) and getattr(self._inner, "is_differentiable", None) is not True:
            targets = targets.long()
        if scores.numel() == targets.numel():
            scores = scores.reshape(targets.shape)
            if bool(((targets == 0) | (targets == 1)).all()):
                scores = torch.sigmoid(scores)
        return scores, targets

    def _failed(self, problem: Exception, scores: Scores, targets: Tensor) -> ModelError:
        """Return what went wrong in the metric, with what it was given."""
        if isinstance(scores, Tensor):
            hint = f"it was given scores of shape {list(scores.shape)} and labels of shape {list(targets.shape)}"
        else:
            parts = list(heads_of(scores))
            hint = f"it was given a dict of the parts {', '.join(parts)} and all labels; `{parts[0]}.{self._name}` is "
            hint += "given those of one part"
        return ModelError(f"metric `{self._name}` failed: {type(problem).__name__}: {problem}", hint=hint)

    def merge(self, other: Foreign) -> None:
        """Refuse: what another library keeps is its own."""
        raise ModelError(f"`{self._name}` of two workers cannot be joined", hint="evaluate in one process")

    def value(self) -> float:
        """Return the metric."""
        try:
            return float(self._inner.compute())
        except Exception as problem:
            raise ModelError(
                f"metric `{self._name}` failed: {type(problem).__name__}: {problem}",
                hint="its compute() returns one number",
            ) from problem


def foreign_metric(name: str) -> Foreign:
    """Return a metric that another package makes."""
    try:
        maker = import_function(name, what="metric", error=ModelError)
    except ModelError:
        if name.startswith("torchmetrics") and not _is_installed("torchmetrics"):
            raise MissingExtraError("torchmetrics", extra="metrics") from None
        raise
    try:
        made = maker()
    except Exception as problem:
        raise ModelError(
            f"metric `{name}` could not be made: {type(problem).__name__}: {problem}",
            hint="name a function of your own, package.module:function, that makes it with its options",
        ) from problem
    if not callable(getattr(made, "update", None)) or not callable(getattr(made, "compute", None)):
        raise ModelError(
            f"`{name}` made a {type(made).__name__}, which is no metric",
            hint="return an object with update(scores, targets) and compute()",
        )
    return Foreign(made, name)


def of_part(name: str) -> tuple[str, str] | None:
    """Return part and metric of a name such as `click.torchmetrics:CohenKappa`; None where it is a module's own."""
    head, dot, inner = name.partition(".")
    place = inner.rpartition(":")[0]
    is_there = place.endswith(".py") or (place != "py" and _is_installed(place))
    return (head, inner) if dot and head.isidentifier() and is_there and not _is_installed(f"{head}.{place}") else None


def _is_installed(package: str) -> bool:
    """Say whether a package, or a module of one, can be imported."""
    from importlib.util import find_spec  # noqa: PLC0415 - only here

    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # what it would lie in is not there, or is no package
        return False


class Metric(Protocol):
    """A number over samples that arrive in batches."""

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Take in the answers to a batch, and what was true."""
        ...

    def merge(self, other: Self) -> None:
        """Take in what another worker has seen."""
        ...

    def value(self) -> float:
        """Return the metric over all that was taken in; NaN where that is too little."""
        ...


class Auc:
    """The area under the ROC curve, from counts of clicks and non-clicks by score.

    Scores become probabilities and those one of `num_bins`; within a bin a pair counts half. `error_bound` says how far
    that can be from the exact area: half the share of pairs that fall into one bin.
    """

    def __init__(self, num_bins: int = 1 << 16) -> None:
        self._clicked = torch.zeros(num_bins, dtype=torch.int64)
        self._quiet = torch.zeros(num_bins, dtype=torch.int64)

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Take in scores [n], [n, 1] or [n, 2] (not clicked, clicked) and labels [n], or one score a label."""
        num_bins = self._clicked.shape[0]
        scores, targets = one_score_each(scores, targets)
        chance = torch.sigmoid(scores.detach().double().cpu())
        if not bool(torch.isfinite(chance).all()):
            raise ModelError("the model's scores are not finite", hint="lower the learning rate")
        bins = (chance * num_bins).long().clamp_(max=num_bins - 1)
        clicked = targets.detach().cpu() > 0.5
        self._clicked += torch.bincount(bins[clicked], minlength=num_bins)
        self._quiet += torch.bincount(bins[~clicked], minlength=num_bins)

    def merge(self, other: Auc) -> None:
        """Add the counts of another worker."""
        self._clicked += other._clicked
        self._quiet += other._quiet

    def value(self) -> float:
        """Return the area."""
        clicked, quiet = self._clicked.double(), self._quiet.double()
        pairs = float(clicked.sum() * quiet.sum())
        if not pairs:
            return math.nan
        below = torch.cumsum(quiet, 0) - quiet
        return float((clicked * (below + quiet / 2)).sum()) / pairs

    def error_bound(self) -> float:
        """Return how far `value` can be from the exact area."""
        pairs = float(self._clicked.sum()) * float(self._quiet.sum())
        return float((self._clicked.double() * self._quiet.double()).sum()) / 2 / pairs if pairs else math.nan


class Ratio(ABC):
    """A metric that is made of two sums over samples: what counts, and how much there is."""

    name: str

    def __init__(self) -> None:
        self.sums = [0.0, 0.0]

    @abstractmethod
    def count(self, scores: Tensor, targets: Tensor) -> tuple[float, float]:
        """Return both sums over a batch."""
        ...

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Take in the answers to a batch, and what was true."""
        counted, total = self.count(scores.detach(), targets.detach().to(scores.device))
        self.sums = [self.sums[0] + counted, self.sums[1] + total]

    def merge(self, other: Self) -> None:
        """Add the sums of another worker."""
        self.sums = [mine + theirs for mine, theirs in zip(self.sums, other.sums, strict=True)]

    def value(self) -> float:
        """Return the metric."""
        return ratio_value(self.name, *self.sums)


class RecallAt(Ratio):
    """The share of samples whose true item is among the `k` best scored."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k, self.name = k, f"recall@{k}"

    def count(self, scores: Tensor, targets: Tensor) -> tuple[float, float]:
        """Count scores [n, items] and the index of each true item [n]; of equals, the true one comes last."""
        if scores.dim() != 2 or targets.dim() != 1:
            raise ModelError(
                f"{self.name} needs one score an item and one true item a sample; scores are {list(scores.shape)}, "
                f"labels {list(targets.shape)}",
                hint="choose another metric",
            )
        of_target = scores.gather(1, targets[:, None].long())
        better = (scores >= of_target).sum(dim=1) - 1
        return float((better < self.k).sum()), targets.shape[0]


class LogLoss(Ratio):
    """The mean log-loss: of a click, of each label, or of the true class."""

    name = "log-loss"

    def count(self, scores: Tensor, targets: Tensor) -> tuple[float, float]:
        """Count scores [n], [n, 1] or [n, classes] and labels [n], or one score a label."""
        if are_classes(scores, targets):
            losses = torch.nn.functional.cross_entropy(scores.double(), targets.long(), reduction="sum")
            return float(losses), targets.numel()
        odds, labels = one_score_each(scores.double(), targets)
        losses = torch.nn.functional.binary_cross_entropy_with_logits(odds, labels.to(odds), reduction="sum")
        return float(losses), labels.numel()


class Accuracy(Ratio):
    """The share of labels that are right: the class scored best, or a click where its chance is above a half."""

    name = "accuracy"

    def count(self, scores: Tensor, targets: Tensor) -> tuple[float, float]:
        """Count scores [n], [n, 1] or [n, classes] and labels [n], or one score a label."""
        if are_classes(scores, targets):
            return float((scores.argmax(dim=1) == targets.long()).sum()), targets.numel()
        odds, labels = one_score_each(scores, targets)
        return float(((odds > 0) == (labels > 0.5)).sum()), labels.numel()


class Calibration(Ratio):
    """How many clicks are predicted for one that happens: 1 is right, 2 is twice too many."""

    name = "calibration"

    def count(self, scores: Tensor, targets: Tensor) -> tuple[float, float]:
        """Count scores [n], [n, 1] or [n, 2] and labels [n], or one score a label."""
        odds, labels = one_score_each(scores, targets)
        return float(torch.sigmoid(odds.double()).sum()), float(labels.double().sum())


class Distance(Ratio):
    """How far scores are from their labels: `rmse` by squares, `mae` as it is."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def count(self, scores: Tensor, targets: Tensor) -> tuple[float, float]:
        """Count one score a label."""
        if scores.numel() != targets.numel():
            raise ModelError(
                f"{self.name} needs one score a label; scores are {list(scores.shape)}, labels {list(targets.shape)}",
                hint="choose accuracy or log-loss for classes",
            )
        far = scores.double().reshape(-1) - targets.double().reshape(-1)
        return float((far.square() if self.name == "rmse" else far.abs()).sum()), targets.numel()


class OfHead:
    """A metric of one part of a model's answer, and of the label in the same place."""

    def __init__(self, head: str, inner: Metric) -> None:
        self.head, self.inner = head, inner

    def update(self, scores: Scores, targets: Tensor) -> None:
        """Take in the answers to a batch, and what was true."""
        parts = {} if isinstance(scores, Tensor) else heads_of(scores)
        if self.head not in parts:
            raise ModelError(
                f"the model's answer has no part `{self.head}`", hint=did_you_mean(self.head, parts) or "leave it out"
            )
        self.inner.update(parts[self.head], label_of(self.head, parts, targets))

    def merge(self, other: OfHead) -> None:
        """Take in what another worker has seen."""
        self.inner.merge(other.inner)

    def value(self) -> float:
        """Return the metric."""
        return self.inner.value()


RATIOS: dict[str, Callable[[], Ratio]] = {
    "log-loss": LogLoss,
    "accuracy": Accuracy,
    "rmse": lambda: Distance("rmse"),
    "mae": lambda: Distance("mae"),
    "calibration": Calibration,
}
NAMES = ("auc", *RATIOS, "recall@10")


def make_metric(name: str) -> Any:
    """Return the metric of that name: `auc`, `log-loss`, `accuracy`, `rmse`, `mae`, `calibration` or `recall@K`.

    `HEAD.NAME` is one of a part of the model's answer. `package.module:function` returns a metric of another library,
    such as `torchmetrics:CohenKappa`: an object with `update(scores, targets)` and `compute()`.
    """
    if ":" in name:
        part = of_part(name)
        return foreign_metric(name) if part is None else OfHead(part[0], foreign_metric(part[1]))
    if name == "auc":
        return Auc()
    if name in RATIOS:
        return RATIOS[name]()
    if match := re.fullmatch(r"recall@([1-9]\d*)", name):
        return RecallAt(int(match[1]))
    head, dot, inner = name.rpartition(".")
    if dot and head:
        return OfHead(head, make_metric(inner))
    raise ModelError(f"there is no metric `{name}`", hint=did_you_mean(name, NAMES))


def are_classes(scores: Tensor, targets: Tensor) -> bool:
    """Say whether scores are of classes, three or more, of which the labels name one each."""
    return scores.dim() == 2 and targets.dim() == 1 and scores.shape[1] > 2


def one_score_each(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return one score a label, and the labels: those of a click, or one for each label of a sample."""
    if scores.shape == targets.shape and scores.dim() > 1:
        return scores.reshape(-1), targets.reshape(-1)
    return click_scores(scores), targets.reshape(-1)


def click_scores(scores: Tensor) -> Tensor:
    """Return the log-odds of a click from scores [n], [n, 1], or [n, 2] (not clicked, clicked)."""
    if scores.dim() == 2 and scores.shape[1] == 2:
        return scores[:, 1] - scores[:, 0]
    if scores.dim() == 1 or (scores.dim() == 2 and scores.shape[1] == 1):
        return scores.reshape(-1)
    raise ModelError(
        f"a click has one score, or two; the model gives {list(scores.shape)}",
        hint="choose accuracy or log-loss for classes, recall@k for models that rank items",
    )
