"""A model as a graph of named blocks: it runs whole like any module, or any run of its blocks alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from dovetail.data.batch import FIELDS, Batch
from dovetail.models.block import Block
from dovetail.models.errors import ModelError
from dovetail.models.recipe import Recipe


class LayerGraph(nn.Module):
    """Blocks in planning order, each reading outputs of earlier ones, fields of the batch, or both.

    `graph(batch)` is the output of the last block: the loss, summed over the samples, where that block is a loss. A
    stage that holds blocks `first` to `last` calls `run` with what `inputs_of` names and passes on what `outputs_of`
    names.
    """

    def __init__(self, blocks: Sequence[Block], *, scores: str | None = None, recipe: Recipe | None = None) -> None:
        """Keep the blocks, and how such a model is best trained.

        `scores` names the block whose output is the model's answer; absent, it is the last before the loss.
        """
        super().__init__()
        self.recipe = recipe or Recipe()
        self._blocks = _resolved(blocks)
        self._position = {block.name: position for position, block in enumerate(self._blocks)}
        self.layers = _registered(self._blocks)
        answers = [block.name for block in self._blocks if block.kind != "loss"]
        self.scores = scores if scores is not None else answers[-1] if answers else self._blocks[-1].name
        self.position(self.scores)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks in planning order, every `after` spelled out."""
        return self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def position(self, name: str) -> int:
        """Return the position of the block called `name`."""
        if name not in self._position:
            raise ModelError(
                f"the model has no layer `{name}`", hint="its layers are " + ", ".join(f"`{n}`" for n in self._position)
            )
        return self._position[name]

    def forward(self, batch: Batch) -> Tensor:
        """Return the output of the last block."""
        return self.run(batch, keep=(self._blocks[-1].name,))[self._blocks[-1].name]

    @property
    def owner(self) -> nn.Module:
        """The module whose names the parameters go by."""
        return self

    def outcome(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the output of the last block, and the model's answer where it is on the way there."""
        last = self._blocks[-1].name
        kept = self.run(batch, keep=(self.scores, last))
        return kept[last], kept.get(self.scores)

    def predict(self, batch: Batch) -> Tensor:
        """Return the model's answer: the output of the block `scores`, the loss left out."""
        return self.run(batch, last=self.position(self.scores), keep=(self.scores,))[self.scores]

    def run(
        self,
        batch: Batch,
        activations: Mapping[str, Tensor] | None = None,
        *,
        first: int = 0,
        last: int | None = None,
        keep: tuple[str, ...] | None = None,
    ) -> dict[str, Tensor]:
        """Run blocks `first` to `last` (inclusive) and return the outputs in `keep` (absent: `outputs_of` them).

        `activations` holds the outputs of earlier blocks that these read; of the batch only the fields in `reads_of`
        need to be there. Outputs are let go of as soon as no later block of the run reads them.
        """
        last = len(self) - 1 if last is None else last
        kept = set(self.outputs_of(first, last) if keep is None else keep)
        values = dict(activations or {})
        last_reader = {name: reader.name for reader in self._blocks[first : last + 1] for name in reader.after or ()}
        for block in self._blocks[first : last + 1]:
            values[block.name] = self._run_block(block, batch, values)
            for name in block.after or ():
                if last_reader[name] == block.name and name not in kept:
                    values.pop(name, None)
        return {name: values[name] for name in values if name in kept}

    def inputs_of(self, first: int, last: int) -> tuple[str, ...]:
        """Return the blocks before `first` whose outputs blocks `first` to `last` read, in planning order."""
        read = {name for block in self._blocks[first : last + 1] for name in block.after or ()}
        return tuple(block.name for block in self._blocks[:first] if block.name in read)

    def outputs_of(self, first: int, last: int) -> tuple[str, ...]:
        """Return the blocks from `first` to `last` whose outputs later blocks read, and the model's last block."""
        read = {name for block in self._blocks[last + 1 :] for name in block.after or ()}
        read.add(self._blocks[-1].name)
        return tuple(block.name for block in self._blocks[first : last + 1] if block.name in read)

    def reads_of(self, first: int, last: int) -> tuple[str, ...]:
        """Return the fields of the batch that blocks `first` to `last` read."""
        read = {name for block in self._blocks[first : last + 1] for name in block.reads}
        further = sorted(read.difference(FIELDS))
        return (*(name for name in FIELDS if name in read), *further)

    def parameters_of(self, first: int, last: int) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the named parameters of blocks `first` to `last`, under the names they have in the whole model."""
        for block in self._blocks[first : last + 1]:
            yield from block.module.named_parameters(prefix=f"layers.{block.name}")

    def ties(self) -> list[tuple[str, str, str]]:
        """Return the parameters that two blocks share, with the first and another: on two stages they would be two."""
        owner: dict[int, str] = {}
        found = []
        for block in self._blocks:
            for name, parameter in block.module.named_parameters():
                first = owner.setdefault(id(parameter), block.name)
                if first != block.name:
                    found.append((name, first, block.name))
        return found

    @staticmethod
    def _run_block(block: Block, batch: Batch, values: Mapping[str, Tensor]) -> Tensor:
        for name in block.after or ():
            if name not in values:
                raise ModelError(
                    f"layer `{block.name}` reads the output of `{name}`, which was not given",
                    hint="pass the activations that `inputs_of(first, last)` names",
                )
        output: Tensor = block.module(
            *(values[name] for name in block.after or ()), *(getattr(batch, name) for name in block.reads)
        )
        return output


def _resolved(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Return the blocks with every `after` spelled out, each reading only earlier ones."""
    if not blocks:
        raise ModelError("the model has no layers", hint="give it at least one")
    done: list[Block] = []
    known: set[str] = set()
    for block in blocks:
        if block.name in known:
            raise ModelError(f"two layers are called `{block.name}`", hint="give every layer its own name")
        after = block.after if block.after is not None else (done[-1].name,) if done else ()
        for name in after:
            if name not in known:
                raise ModelError(
                    f"layer `{block.name}` comes after `{name}`, which does not come before it",
                    hint="list the layers in an order in which each reads only earlier ones",
                )
        if not after and not block.reads:
            raise ModelError(
                f"layer `{block.name}` reads nothing", hint=f"name fields of the batch in `reads`: {', '.join(FIELDS)}"
            )
        done.append(replace(block, after=after))
        known.add(block.name)
    unread = known - {name for block in done for name in block.after or ()} - {done[-1].name}
    if unread:
        lost = next(block.name for block in done if block.name in unread)
        raise ModelError(f"no layer reads the output of `{lost}`", hint="remove it, or name it in a later `after`")
    return tuple(done)


def _registered(blocks: Sequence[Block]) -> nn.Module:
    """Return one module that holds those of all blocks under their names."""
    layers = nn.Module()
    for block in blocks:
        try:
            layers.add_module(block.name, block.module)
        except KeyError:
            raise ModelError(
                f"a layer is called `{block.name}`, which PyTorch keeps for itself", hint="give it another name"
            ) from None
    return layers
