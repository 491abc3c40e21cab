"""PyTorch's optimizers and schedulers as settings of a run: taken where they mean the same, else refused by reason.

A scheduler is read as one that is stepped after every batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from dovetail.models.embedding import SlotEmbedding
from dovetail.models.errors import ModelError

Settings = dict[str, Any]
FIXED: Mapping[type[Optimizer], Mapping[str, Any]] = {
    torch.optim.SGD: {"dampening": 0, "nesterov": False, "weight_decay": 0, "maximize": False},
    torch.optim.Adagrad: {"lr_decay": 0, "weight_decay": 0, "maximize": False},
    torch.optim.AdamW: {"amsgrad": False, "maximize": False},
    torch.optim.Adam: {"amsgrad": False, "maximize": False, "weight_decay": 0},
    torch.optim.SparseAdam: {"maximize": False},
}
"""What has to be as it is by default, for ours have no such setting; AdamW, which is a kind of Adam, is first."""
INSTEAD = {
    "weight_decay": "take torch.optim.AdamW, whose decay is apart from the gradient, or weight_decay = 0",
    "momentum": 'say so with optimizer="momentum", or give the rows an optimizer of their own: {"name": "momentum", '
    '"rows": "adagrad"}',
}
CAN = "SGD, Adagrad, Adam, AdamW, and SparseAdam for rows, can be taken"


def optimizer_settings(optimizer: Optimizer | Sequence[Optimizer], model: nn.Module | None) -> Settings:
    """Return a run's `[optimizer]` that does what these do to the parameters of a model, each of which they have once.

    Two may share the work: one for rows with sparse gradients, one for all the rest.
    """
    if model is None:
        raise ModelError(
            "the optimizer is an object, and the model is given by name",
            hint='name it: optimizer="adam", learning_rate=1e-3',
        )
    given = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    if not given or not all(isinstance(each, Optimizer) for each in given):
        raise ModelError(
            f"optimizer is {optimizer!r:.80}", hint='give a name, e.g. "adam", settings, or an object of torch.optim'
        )
    rows = {id(module.weight) for module in model.modules() if _has_rows(module)}
    groups = [(each, group) for each in given for group in each.param_groups]
    for each in given:
        if any(float(state.get("step", 1)) for state in each.state.values()):  # Adagrad's is there from the first
            raise ModelError(
                f"the {type(each).__name__} has taken steps already, and a run begins with none",
                hint="make it anew; parameters that are trained already are a run's `start_from`, or in the model",
            )
    _check_all_there(model, groups)
    of_rows = [_read(*group) for group in groups if any(id(each) in rows for each in group[1]["params"])]
    others = [group for group in groups if any(id(each) not in rows for each in group[1]["params"])]
    if len({str(each) for each in of_rows}) > 1:
        raise ModelError(
            "tables have optimizers with different settings", hint="all rows have one: put them into one group"
        )
    settings = _dense_settings(others, model, rows) if others else {}
    if of_rows:
        settings |= _row_settings(of_rows[0], settings)
    return settings


def _has_rows(module: nn.Module) -> bool:
    """Say whether a module's gradients are sparse."""
    is_sparse = isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    return (isinstance(module, SlotEmbedding) or bool(is_sparse)) and bool(module.weight.requires_grad)


def _check_all_there(model: nn.Module, groups: Sequence[tuple[Optimizer, Mapping[str, Any]]]) -> None:
    """Refuse an optimizer of other parameters than the model's, or of some of them alone."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = [id(parameter) for _, group in groups for parameter in group["params"]]
    if any(each not in names for each in held):
        raise ModelError(
            "the optimizer has parameters that are not the model's",
            hint="make it of this very model's: torch.optim.Adam(model.parameters(), lr=1e-3)",
        )
    left = [name for name, each in model.named_parameters() if each.requires_grad and id(each) not in held]
    if left:
        raise ModelError(
            f"the optimizer leaves out `{left[0]}`" + (f" and {len(left) - 1} more" if len(left) > 1 else ""),
            hint="give it all parameters; what is not to be trained has requires_grad_(False)",
        )


def _read(optimizer: Optimizer, group: Mapping[str, Any]) -> Settings:
    """Return one group's name, rate and settings in our words; refuse what we have no word for."""
    kind = next((kind for kind in FIXED if isinstance(optimizer, kind)), None)
    name = type(optimizer).__name__
    if kind is None:
        raise ModelError(f"there is nothing like {name} here", hint=CAN)
    for key, value in FIXED[kind].items():
        if group.get(key, value) != value:
            raise ModelError(
                f"{name} has {key} = {group[key]}, which optimizers here do not have",
                hint=INSTEAD.get(key, f"leave it at {value}"),
            )
    found: Settings = {"learning_rate": float(group.get("initial_lr", group["lr"])), "settings": {}}
    if kind is torch.optim.SGD:
        momentum = float(group["momentum"])
        return found | {"name": "momentum", "settings": {"momentum": momentum}} if momentum else found | {"name": "sgd"}
    if kind is torch.optim.Adagrad:
        first = float(group["initial_accumulator_value"])
        return found | {"name": "adagrad", "settings": {"epsilon": float(group["eps"]), "first_sum": first}}
    beta1, beta2 = map(float, group["betas"])
    settings = {"beta1": beta1, "beta2": beta2, "epsilon": float(group["eps"])}
    if kind is torch.optim.AdamW:
        return found | {"name": "adamw", "settings": settings | {"weight_decay": float(group["weight_decay"])}}
    return found | {"name": "sparse-adam" if kind is torch.optim.SparseAdam else "adam", "settings": settings}


def _dense_settings(
    groups: Sequence[tuple[Optimizer, Mapping[str, Any]]], model: nn.Module, rows: set[int]
) -> Settings:
    """Return the settings of dense parameters; groups after the first name theirs."""
    found = [_read(*group) for group in groups]
    if len({each["name"] for each in found}) > 1 or found[0]["name"] == "sparse-adam":
        raise ModelError(
            f"dense parameters are given to {' and '.join(dict.fromkeys(type(each).__name__ for each, _ in groups))}",
            hint="all dense parameters have optimizers of one kind; SparseAdam is for rows with sparse gradients alone",
        )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    own = [
        {"pattern": names[id(each)], "learning_rate": settings["learning_rate"], "settings": settings["settings"]}
        for (_, group), settings in zip(groups[1:], found[1:], strict=True)
        if settings != found[0]
        for each in group["params"]
        if each.requires_grad and id(each) not in rows
    ]
    return found[0] | ({"groups": own} if own else {})


def _row_settings(rows: Settings, dense: Settings) -> Settings:
    """Return what updates rows; refuse what PyTorch does to rows and we do not."""
    kind = {"sparse-adam": "adam", "adamw": "adam"}.get(rows["name"], rows["name"])
    if kind == "momentum":
        raise ModelError(
            "PyTorch's SGD gives rows with sparse gradients a momentum, and rows here have none",
            hint=INSTEAD["momentum"],
        )
    settings = {key: value for key, value in rows["settings"].items() if key != "weight_decay"}
    found = {"rows": kind, "rows_learning_rate": rows["learning_rate"], "rows_settings": settings}
    return found if dense else found | {"learning_rate": rows["learning_rate"]}


def schedule_settings(scheduler: LRScheduler) -> Settings:
    """Return a run's `[optimizer.schedule]` that gives the rates of a scheduler that is stepped after every batch."""
    if isinstance(scheduler, lr_scheduler.SequentialLR):
        return _sequential(scheduler)
    if isinstance(scheduler, lr_scheduler.LinearLR):
        first, last, steps = scheduler.start_factor, scheduler.end_factor, scheduler.total_iters
        if first == 1:
            return {"name": "linear", "total_steps": steps + 1, "floor": float(last)}
        if (warmup := _warmup_steps(scheduler)) is not None:
            return {"name": "warmup", "warmup_steps": warmup}
        raise ModelError(
            f"LinearLR rises from {first:g} to {last:g} in {steps} steps, and rates here rise from 1 / steps to 1",
            hint=f"e.g. LinearLR(optimizer, start_factor=1 / {steps + 1}, end_factor=1.0, total_iters={steps})",
        )
    if isinstance(scheduler, lr_scheduler.CosineAnnealingLR):
        floors = {scheduler.eta_min / rate for rate in scheduler.base_lrs}
        if len(floors) > 1:
            raise ModelError(
                f"CosineAnnealingLR falls to {scheduler.eta_min:g} for groups with different rates",
                hint="eta_min = 0 is the same for all",
            )
        return {"name": "cosine", "total_steps": scheduler.T_max + 1, "floor": float(floors.pop())}
    if isinstance(scheduler, lr_scheduler.ConstantLR) and scheduler.factor == 1:
        return {"name": "constant"}
    raise ModelError(
        f"there is nothing like {type(scheduler).__name__} here",
        hint="LinearLR, CosineAnnealingLR and a SequentialLR of a warmup and one of them can be taken, or name one: "
        'schedule={"name": "cosine", "warmup_steps": 100, "total_steps": 10_000}',
    )


def _warmup_steps(scheduler: lr_scheduler.LinearLR) -> int | None:
    """Return over how many steps a rate rises from 1 / steps to 1; None where it does something else."""
    steps = int(scheduler.total_iters) + 1
    is_warmup = scheduler.end_factor == 1 and math.isclose(scheduler.start_factor, 1 / steps, rel_tol=1e-9)
    return steps if is_warmup else None


def _sequential(scheduler: lr_scheduler.SequentialLR) -> Settings:
    """Return a warmup and what follows it."""
    parts: Any = scheduler._schedulers
    if len(parts) == 2 and isinstance(parts[0], lr_scheduler.LinearLR):
        warmup, (milestone,) = _warmup_steps(parts[0]), scheduler._milestones
        after = schedule_settings(parts[1])
        if warmup is not None and milestone == warmup and after["name"] in ("linear", "cosine"):
            return after | {"warmup_steps": warmup, "total_steps": after["total_steps"] + warmup}
    raise ModelError(
        "this SequentialLR is no warmup with a fall after it",
        hint="e.g. SequentialLR(optimizer, [LinearLR(optimizer, 1 / 100, total_iters=99), CosineAnnealingLR(optimizer, "
        "9_900)], milestones=[100])",
    )
