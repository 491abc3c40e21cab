"""What a model is to learn: told by the labels and the shape of its answers, or asked for."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dovetail.models.answers import LossSpec, Scores, heads_of, label_of
from dovetail.models.errors import ModelError
from dovetail.models.loss_names import NO_LOSS, OWN_LOSSES, base_name

NAME_ONE = 'name one: loss = "logistic" (0 or 1), "cross-entropy" (classes), "squared" (numbers), or your own'
LOSS = "loss"
"""What a part of an answer is called that is the loss, whatever other parts there are."""
UNIT_LOSSES = ("logistic", "hinge", "softmax")
"""Losses whose labels are chances: 0, 1, or between."""
NUMBER_METRICS = {"squared": "rmse", "huber": "rmse", "absolute": "mae"}


def infer_loss(scores: Scores, labels: Tensor, own: Mapping[str, str] | None = None) -> LossSpec:
    """Return the loss that fits; where several would, refuse and ask.

    `own` says how answers that are one number come from the samples, by the name of the part, or by none: `answer-mean`
    or `answer-sum`. A part called `loss` that is one is the loss, and others are only looked at.

    One score a sample, or one a label: `logistic` where all labels are 0 or 1, else `squared`. Several scores a sample
    and one label: `cross-entropy`. A model with several answers: one loss for each.
    """
    if not isinstance(scores, Tensor):
        parts, own = heads_of(scores), own or {}
        if LOSS in own:
            return {name: own[LOSS] if name == LOSS else NO_LOSS for name in parts}
        return {
            name: own[name] if name in own else str(infer_loss(part, label_of(name, parts, labels)))
            for name, part in parts.items()
        }
    if own and not scores.dim():
        return own[""]
    if scores.numel() == labels.numel():
        return "logistic" if bool(((labels == 0) | (labels == 1)).all()) else "squared"
    if scores.dim() >= 2 and scores.numel() == labels.numel() * scores.shape[-1] and _are_whole(labels):
        if labels.dim() == 1 and len(labels) and scores.shape[-1] > 2 and float(labels.max()) < 2:
            raise ModelError(
                f"the model answers {scores.shape[-1]} numbers a sample, and all labels that were looked at are 0 or 1",
                hint="answer one number a sample, or two, one for each class; where there are "
                f'{scores.shape[-1]} classes, and some are rare: loss = "cross-entropy"',
            )
        return "cross-entropy"
    raise ModelError(
        f"no loss fits labels of shape {_shape(labels)}, such as {_some(labels)}, and answers of shape "
        f"{_shape(scores)}",
        hint=NAME_ONE,
    )


def check_task(loss: LossSpec, scores: Scores, labels: Tensor) -> None:
    """Refuse labels that a loss makes no sense of."""
    if not bool(torch.isfinite(labels).all()):
        raise ModelError("a label is not a finite number", hint="leave such samples out of the data")
    if isinstance(loss, Mapping):
        parts = {} if isinstance(scores, Tensor) else heads_of(scores)
        for name, part in parts.items():
            if name in loss and part.dim() and base_name(loss[name]) not in (*OWN_LOSSES, NO_LOSS):
                check_task(loss[name], part, label_of(name, parts, labels))
    elif base_name(loss) in UNIT_LOSSES:
        check_unit_labels(base_name(loss), labels)
    elif base_name(loss) == "cross-entropy" and isinstance(scores, Tensor) and labels.shape != scores.shape:
        classes = scores.shape[-1]
        if scores.dim() < 2 or classes < 2:
            return  # the loss itself says what it needs
        if not _are_whole(labels) or float(labels.min()) < 0 or float(labels.max()) >= classes:
            raise ModelError(
                f"labels such as {_some(labels, outside=classes)} are none of the classes 0 to {classes - 1} that the "
                "model tells apart",
                hint='number the classes from 0 on, and give the model one score for each; for numbers, "squared"',
            )


def check_unit_labels(loss: str, labels: Tensor) -> None:
    """Refuse labels that are no chances."""
    if not labels.numel():
        return
    low, high = (float(end) for end in torch.aminmax(labels))
    if not (low >= 0.0 and high <= 1.0):
        raise ModelError(
            f"a label is {low if low < 0.0 else high:g}, and the loss `{loss}` is for labels from 0 to 1",
            hint='for numbers take loss = "squared"; for classes "cross-entropy", with one score a class',
        )


def usual_metrics(loss: LossSpec, scores: Scores) -> tuple[str, ...]:
    """Return what such a model is usually judged by."""
    if isinstance(loss, Mapping):
        parts = {} if isinstance(scores, Tensor) else heads_of(scores)
        return tuple(f"{name}.{metric}" for name, part in parts.items() for metric in usual_metrics(loss[name], part))
    if not isinstance(scores, Tensor) or not scores.dim():
        return ()
    loss = base_name(loss)
    num_scores = 1 if scores.dim() == 1 else scores.shape[-1]
    if loss == "logistic":
        return ("auc",) if num_scores == 1 else ("accuracy",)
    if loss == "cross-entropy":
        return ("auc",) if num_scores == 2 and scores.dim() == 2 else ("accuracy",)
    return (NUMBER_METRICS[loss],) if loss in NUMBER_METRICS else ()


def _are_whole(labels: Tensor) -> bool:
    """Say whether all labels are whole numbers from 0 on."""
    return bool((labels == labels.floor()).all()) and bool((labels >= 0).all())


def _shape(tensor: Tensor) -> str:
    """Return a shape with the samples as n."""
    return "[" + ", ".join(["n", *(str(size) for size in tensor.shape[1:])]) + "]"


def _some(labels: Tensor, *, outside: int | None = None) -> str:
    """Return a few labels, those that are none of `outside` classes first."""
    flat = labels.reshape(-1)
    if outside is not None:
        strange = (flat < 0) | (flat >= outside) | (flat != flat.floor())
        flat = torch.cat([flat[strange], flat[~strange][:0]])
    return ", ".join(f"{value:g}" for value in torch.unique(flat)[:3].tolist())
