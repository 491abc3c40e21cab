"""From `nn.Sequential` to a graph of blocks."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from dovetail.models.block import Block
from dovetail.models.errors import ModelError
from dovetail.models.kinds import kind_of


def blocks_of_sequential(model: nn.Sequential) -> list[Block]:
    """Return one block a layer, those of nested sequences included.

    The first layer gets the batch's numbers, `dense`, unless it is an `nn.EmbeddingBag`, which gets `ids` and
    `offsets`, or has an attribute `reads` that names the fields it wants. Later layers with such an attribute get those
    fields too.
    """
    blocks: list[Block] = []
    for name, module in steps_of(model):
        own = tuple(getattr(module, "reads", ()))
        if not blocks and not own:
            own = first_reads(module)
        blocks.append(Block(name=_block_name(name, module), kind=kind_of(module), module=module, reads=own))
    if not blocks:
        raise ModelError("the model is an empty nn.Sequential", hint="give it at least one layer")
    return blocks


def steps_of(model: nn.Sequential, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a sequence and of the sequences in it, named by their path; one used twice comes twice."""
    for name, module in model._modules.items():
        if module is None:  # PyTorch allows it
            continue  # type: ignore[unreachable]
        if isinstance(module, nn.Sequential):
            yield from steps_of(module, f"{prefix}{name}_")
        else:
            yield f"{prefix}{name}", module


def _block_name(path: str, module: nn.Module) -> str:
    """Return the path where its last part is a word; for a mere number, the class in front of it."""
    return f"{type(module).__name__.lower()}{path}" if path.rpartition("_")[2].isdigit() else path


def first_reads(module: nn.Module) -> tuple[str, ...]:
    """Return the fields of the batch that a model's first layer gets."""
    if isinstance(module, nn.EmbeddingBag):
        if not module.include_last_offset:
            raise ModelError(
                "the first layer is an nn.EmbeddingBag without include_last_offset",
                hint="build it with include_last_offset=True: a batch's offsets end with the number of ids",
            )
        return ("ids", "offsets")
    return ("ids",) if isinstance(module, nn.Embedding) else ("dense",)
