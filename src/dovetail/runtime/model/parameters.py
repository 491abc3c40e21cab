"""Which parameters of a model are tables on servers, how others lie in one vector, and what training leaves alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dovetail.models.embedding import SlotEmbedding
from dovetail.runtime.blueprint import DenseEntry, TableSpec
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.model.build import Model

TRAINED_TYPES = (torch.float32, torch.bfloat16, torch.float16)
TableLayer = SlotEmbedding | nn.Embedding | nn.EmbeddingBag


@dataclass(frozen=True, slots=True)
class SparseModule:
    """A table on the servers: the layer whose weight it is, and others that share the weight."""

    name: str
    module: TableLayer
    sharing: tuple[TableLayer, ...] = ()

    @property
    def layers(self) -> tuple[TableLayer, ...]:
        """All layers that look up in this table."""
        return (self.module, *self.sharing)

    def spec(self) -> TableSpec:
        """Return the table."""
        num_rows, width = self.module.weight.shape
        return TableSpec(
            name=self.name,
            width=width,
            num_rows=num_rows,
            scale=1.0 / 3.0 / math.sqrt(width),
            padding=getattr(self.module, "padding_idx", None),
            max_norm=getattr(self.module, "max_norm", None),
            norm_type=getattr(self.module, "norm_type", 2.0),
        )


def sparse_modules(model: Model) -> list[SparseModule]:
    """Return the tables whose rows lie on servers: of Dovetail's layers, and of PyTorch's with sparse gradients.

    A weight that is frozen, or that other layers use as well, is no table: it stays with the workers.
    """
    found: dict[int, SparseModule] = {}
    elsewhere = _used_elsewhere(model)
    for name, module in model.owner.named_modules():
        if isinstance(module, SlotEmbedding) and module.row_source is None and module.weight.is_meta:
            _check_trained(name, module)
        if not _is_table(module) or not module.weight.requires_grad or id(module.weight) in elsewhere:
            continue
        _check_table(name, module)
        known = found.get(id(module.weight))
        if known is not None:
            _check_alike(known, name, module)
        found[id(module.weight)] = (
            SparseModule(name, module)
            if known is None
            else SparseModule(known.name, known.module, (*known.sharing, module))
        )
    return list(found.values())


def _check_trained(name: str, module: SlotEmbedding) -> None:
    """Refuse to freeze rows that only servers make."""
    if not module.weight.requires_grad:
        raise TrainingError(
            f"layer `{name}` is frozen, and its rows are made by servers",
            hint="train it, or take an nn.EmbeddingBag, whose rows are the module's own where it is frozen",
        )


def _is_table(module: nn.Module) -> bool:
    """Say whether a layer's gradients are sparse."""
    if isinstance(module, SlotEmbedding):
        return True
    return isinstance(module, nn.Embedding | nn.EmbeddingBag) and bool(module.sparse)


def _used_elsewhere(model: Model) -> set[int]:
    """Return the parameters that belong to a layer which is no table."""
    return {
        id(parameter)
        for module in model.owner.modules()
        if not _is_table(module)
        for parameter in module.parameters(recurse=False)
    }


def _check_table(name: str, module: nn.Module) -> None:
    """Refuse what servers do not know."""
    if isinstance(module, SlotEmbedding):
        return
    padding: int | None = getattr(module, "padding_idx", None)
    weight: Tensor = module.weight  # type: ignore[assignment]
    if padding is not None and not weight.is_meta and bool(weight[padding].any()):
        raise TrainingError(
            f"layer `{name}` has other numbers than zeros in the row of its padding_idx, {padding}",
            hint="set that row to zeros, which is what servers have for it, or train it with sparse=False",
        )
    if getattr(module, "mode", "sum") == "max":
        raise TrainingError(f"layer `{name}` pools by max", hint="choose mode sum or mean")


def _check_alike(known: SparseModule, name: str, module: nn.Module) -> None:
    """Refuse layers that share a weight and use it in unlike ways."""
    for option in ("padding_idx", "max_norm", "norm_type"):
        one, other = getattr(known.module, option, None), getattr(module, option, None)
        if one != other:
            raise TrainingError(
                f"layers `{known.name}` and `{name}` share their rows, and {option} is {one} and {other}",
                hint=f"give both the same {option}",
            )


def _check_dense(model: Model) -> None:
    """Refuse trained rows that a forward pass changes where no server would know."""
    sparse = {id(each.module.weight) for each in sparse_modules(model)}
    for name, module in model.owner.named_modules():
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag) or module.max_norm is None:
            continue
        if module.weight.requires_grad and not module.weight.is_meta and id(module.weight) not in sparse:
            raise TrainingError(
                f"layer `{name}` has max_norm and is a dense parameter",
                hint="build it with sparse=True, and let no other kind of layer use its weight: servers keep the norm",
            )


def dense_parameters(model: Model) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that are trained and are not tables, each once, under the names they have in the model."""
    sparse = {id(each.module.weight) for each in sparse_modules(model)}
    found = []
    for name, parameter in model.owner.named_parameters():
        if id(parameter) in sparse or not parameter.requires_grad:
            continue
        if parameter.dtype not in TRAINED_TYPES:
            raise TrainingError(
                f"parameter `{name}` is {str(parameter.dtype).removeprefix('torch.')}",
                hint="train float32, or bfloat16 or float16, of which servers keep masters in float32: model.float()",
            )
        found.append((name, parameter))
    return found


def dense_entries(model: Model) -> tuple[DenseEntry, ...]:
    """Return where each dense parameter lies in the one vector."""
    _check_dense(model)
    entries, offset = [], 0
    for name, parameter in dense_parameters(model):
        entries.append(DenseEntry(name=name, shape=tuple(parameter.shape), offset=offset))
        offset += parameter.numel()
    return tuple(entries)


def dense_values(model: Model) -> NDArray[np.float32]:
    """Return the dense parameters as one vector."""
    parts = [parameter.detach().reshape(-1).float() for _, parameter in dense_parameters(model)]
    return torch.cat(parts).numpy() if parts else np.zeros(0, dtype=np.float32)


def fixed_tensors(model: Model) -> dict[str, Tensor]:
    """Return what training leaves as it is, by name: frozen parameters, and buffers that are part of the state."""
    fixed = {
        name: parameter.detach() for name, parameter in model.owner.named_parameters() if not parameter.requires_grad
    }
    kept = model.owner.state_dict().keys()
    return fixed | {name: buffer for name, buffer in model.owner.named_buffers() if name in kept}


def norms_of(model: Model) -> list[nn.modules.batchnorm._NormBase]:
    """Return the layers that normalise by statistics of a batch, and keep running ones."""
    return [
        module
        for module in model.owner.modules()
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
    ]


def batch_norms_of(model: Model) -> list[nn.modules.batchnorm._BatchNorm]:
    """Return the layers that normalise by statistics of a batch while they train, and are in training."""
    return [
        module
        for module in model.owner.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
    ]


def named_statistics(model: Model) -> Iterator[tuple[str, Tensor]]:
    """Yield the running means and variances that normalising layers keep, each worker its own, with their names."""
    names = {id(buffer): name for name, buffer in model.owner.named_buffers()}
    for module in norms_of(model):
        for buffer in (module.running_mean, module.running_var):
            if buffer is not None:
                yield names[id(buffer)], buffer


def statistics_vector(model: Model, instead: Mapping[str, Tensor] | None = None) -> NDArray[np.float32]:
    """Return all running means and variances as one vector; `instead` of the model's own, those under their names."""
    found = [(instead or {}).get(name, buffer) for name, buffer in named_statistics(model)]
    parts = [buffer.detach().reshape(-1).float().cpu() for buffer in found]
    return torch.cat(parts).numpy() if parts else np.zeros(0, dtype=np.float32)


def fill_statistics(model: Model, values: NDArray[np.float32]) -> None:
    """Give all running means and variances the values of a vector."""
    offset = 0
    for _, buffer in named_statistics(model):
        part = torch.from_numpy(values[offset : offset + buffer.numel()])
        buffer.copy_(part.view(buffer.shape))
        offset += buffer.numel()
