"""One layer of a model: a module with a name, a kind, and where its inputs come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from torch import nn

from dovetail.data.batch import FIELDS
from dovetail.errors import did_you_mean
from dovetail.models.errors import ModelError
from dovetail.spec.layer import LayerKind

KINDS: tuple[LayerKind, ...] = get_args(LayerKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A layer: `module(*outputs of the layers in after, *fields of the batch in reads)` gives its one tensor."""

    name: str
    kind: LayerKind
    module: nn.Module
    after: tuple[str, ...] | None = None
    """The layers whose outputs this one reads, in order; None is the layer before, () none at all."""
    reads: tuple[str, ...] = ()
    """Fields of the batch that this layer reads itself, such as `("ids", "offsets")`."""

    def __post_init__(self) -> None:
        """Refuse a block that no graph could hold."""
        if not self.name.strip() or "." in self.name:
            raise ModelError(f"a layer is called `{self.name}`", hint="give it a name without dots")
        if self.kind not in KINDS:
            raise ModelError(f"layer `{self.name}` has kind `{self.kind}`", hint=did_you_mean(self.kind, KINDS))
        for name in self.reads:
            if not name.isidentifier():
                raise ModelError(f"layer `{self.name}` reads `{name}`", hint=did_you_mean(name, FIELDS))
