"""What models answer: one tensor or several parts, each compared with labels or a loss itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from dovetail.models.errors import ModelError
from dovetail.models.loss_names import NO_LOSS

LossSpec = str | Mapping[str, str]
"""A loss by its name, or one for each part of the model's answer; `0.3 * NAME` counts three tenths."""
Scores = Tensor | Mapping[str, Tensor] | Sequence[Tensor]
"""What a model answers: a tensor, or several by name or by position."""


def heads_of(scores: Scores) -> dict[str, Tensor]:
    """Return the parts of a model's answer by name; those without a name are called by their position."""
    if isinstance(scores, Mapping):
        return dict(scores)
    return {str(position): part for position, part in enumerate(scores)}


def label_of(name: str, parts: Mapping[str, Tensor], labels: Tensor) -> Tensor:
    """Return the labels of a part: the column in its place among the parts that are no single numbers.

    Where it is the only such part, all labels are its.
    """
    compared = [each for each, part in parts.items() if part.dim()]
    if len(compared) == 1 and len(parts) > 1:
        return labels
    if labels.dim() < 2 or labels.shape[1] != len(compared):
        raise ModelError(
            f"the model answers {len(compared)} parts, and labels have shape {list(labels.shape)}",
            hint="give labels one column for each part of the answer, in its order",
        )
    return labels[:, compared.index(name)]


class Times(nn.Module):
    """A loss that counts more or less than others."""

    def __init__(self, weight: float, inner: nn.Module) -> None:
        """Keep the loss and its weight."""
        super().__init__()
        self.weight, self.inner = weight, inner

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the value of every sample, times the weight."""
        values: Tensor = self.inner(scores, labels)
        return self.weight * values


class OwnLoss(nn.Module):
    """The answer of a model that computes its own loss: one value a sample, or one number for all of them."""

    def __init__(self, kind: str) -> None:
        """Keep which of `OWN_LOSSES` it is."""
        super().__init__()
        self.kind = kind

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """Return the value of every sample; the mean, or its part of the sum, where there is one for all."""
        count = labels.shape[0]
        wanted = (count,) if self.kind == "answer" else ()
        if not isinstance(scores, Tensor) or tuple(scores.shape) != wanted:
            got = f"shape {list(scores.shape)}" if isinstance(scores, Tensor) else "several parts"
            raise ModelError(
                f"the model's answer is its loss, `{self.kind}`, and it answers {got} to {count} samples",
                hint="answer one value a sample (`answer`), or their mean or sum as one number (`answer-mean`, "
                "`answer-sum`)",
            )
        if self.kind == "answer":
            return scores
        return (scores if self.kind == "answer-mean" else scores / count).expand(count)


class Heads(nn.Module):
    """One loss for each part of a model's answer, added up; the i-th part is compared with the i-th label."""

    def __init__(self, losses: Mapping[str, nn.Module | None]) -> None:
        """Keep the losses; a part without one is only looked at."""
        super().__init__()
        self._names = tuple(losses)
        self.inner = nn.ModuleDict({str(at): loss for at, loss in enumerate(losses.values()) if loss is not None})
        if not len(self.inner):
            raise ModelError("no part of the model's answer has a loss", hint="name one for at least one of them")

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """Return the sum over heads of every sample."""
        parts = {} if isinstance(scores, Tensor) else heads_of(scores)
        if sorted(parts) != sorted(self._names):
            wanted, answers = (", ".join(f"`{name}`" for name in names) for names in (self._names, parts))
            raise ModelError(
                f"there are losses for {wanted}, and the model answers {answers or 'one tensor'}",
                hint=f"name one loss for each part of the model's answer; `{NO_LOSS}` for one that has none",
            )
        values = []
        for at, loss in self.inner.items():
            name = self._names[int(at)]
            its = labels if is_own(loss) else label_of(name, parts, labels)
            values.append(loss(parts[name], its))
        return torch.stack(values).sum(dim=0)


def is_own(loss: nn.Module) -> bool:
    """Say whether a loss is the model's own answer, which is compared with nothing."""
    return isinstance(loss.inner if isinstance(loss, Times) else loss, OwnLoss)


def has_one_number(loss: nn.Module) -> bool:
    """Say whether a loss, or one of its parts, is one number for all samples: weights of samples cannot reach it."""
    return any(isinstance(each, OwnLoss) and each.kind != "answer" for each in loss.modules())
