"""NCE: what comes next, learned by telling it from noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.data.batch import Batch
from dovetail.data.schema import Schema
from dovetail.models.block import Block
from dovetail.models.draws import sample_units, signed_stream
from dovetail.models.embedding import SlotEmbedding, select_slots
from dovetail.models.errors import ModelError
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.losses import loss_block, weighted_sum
from dovetail.models.recipe import RECIPES

RECIPE = RECIPES["nce"]


class LogUniform:
    """Noise over n rows ordered by popularity: P(row k) = log((k + 2) / (k + 1)) / log(n + 1), k from 0."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def rows(self, units: Tensor) -> Tensor:
        """Return the rows that uniform numbers stand for."""
        return (torch.exp(units * math.log(self.num_rows + 1)).long() - 1).clamp_(0, self.num_rows - 1)

    def log_chance(self, rows: Tensor) -> Tensor:
        """Return the logarithm of each row's probability."""
        return torch.log(torch.log1p(1.0 / (rows + 1.0)) / math.log(self.num_rows + 1))


class Candidates(nn.Module):
    """The row that came next, and noise rows drawn from (seed, sample id)."""

    def __init__(
        self, *, slot: int, num_slots: int, first_key: int, num_rows: int, num_negatives: int, seed: int
    ) -> None:
        """Keep where the target lies in a sample, and the noise."""
        super().__init__()
        self.slot, self.num_slots, self.first_key, self.num_negatives = slot, num_slots, first_key, num_negatives
        self.noise = LogUniform(num_rows)
        self._stream = signed_stream(seed, "noise")

    def forward(self, ids: Tensor, offsets: Tensor, sample_ids: Tensor) -> Tensor:
        """Return rows: int64 [n, 1 + num_negatives], the target first."""
        noise = self.noise.rows(sample_units(self._stream, sample_ids, self.num_negatives))
        return torch.cat([self.targets(ids, offsets)[:, None], noise], dim=1)

    def targets(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Return the row that came next in each sample."""
        chosen, bags = select_slots(ids, offsets, self.num_slots, self.slot, self.slot + 1)
        return chosen[bags[:-1]] - self.first_key


class Outputs(SlotEmbedding):
    """The table of rows to choose from."""

    def forward(self, candidates: Tensor) -> Tensor:  # type: ignore[override]
        """Return one vector a candidate: [n, candidates, width]."""
        return self.rows(candidates)


class Dot(nn.Module):
    """The scalar product of a context with each of its candidates."""

    def forward(self, context: Tensor, candidates: Tensor) -> Tensor:
        """Return [n, candidates] from [n, w] and [n, candidates, w]."""
        return torch.einsum("nw,ncw->nc", context, candidates)


class NceLoss(nn.Module):
    """Tell the target from k noise rows: the log-loss of sigmoid(score - log(k * P_noise(row))), summed.

    At the optimum a score is the logarithm of the row's true probability after the context (Gutmann and Hyvarinen,
    2010).
    """

    def __init__(self, noise: LogUniform) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, scores: Tensor, candidates: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the sum over clicked samples and their candidates."""
        odds = scores - self.noise.log_chance(candidates).to(scores.dtype) - math.log(scores.shape[1] - 1)
        wanted = torch.zeros_like(odds)
        wanted[:, 0] = 1.0
        losses = functional.binary_cross_entropy_with_logits(odds, wanted, reduction="none").sum(dim=1)
        return weighted_sum(losses * labels, weights)


def nce(
    schema: Schema,
    *,
    seed: int = 0,
    loss: str = RECIPE.loss,
    num_rows: int = 1_000_001,
    width: int = 64,
    num_negatives: int = 25,
) -> list[Block]:
    """Return five blocks: context embedding (averaged), candidates, output embedding, dot, loss.

    The last slot is what came next, ordered by popularity as `clicks` makes it; all other slots are the context.
    """
    target = schema.slots[-1]
    if schema.num_slots < 2 or target.num_keys is None:
        raise ModelError(
            "`nce` needs a context, and a last slot of known size that says what came next",
            hint="give the last slot `num_keys`, or take the data from clicks with truth = next-item",
        )
    slots = schema.num_slots
    context = SlotEmbedding(num_rows=num_rows, width=width, num_slots=slots, last_slot=slots - 1, mode="mean")
    outputs = Outputs(num_rows=target.num_keys, width=width * (slots - 1), num_slots=1)
    candidates = Candidates(
        slot=slots - 1,
        num_slots=slots,
        first_key=target.first_key,
        num_rows=target.num_keys,
        num_negatives=num_negatives,
        seed=seed,
    )
    last = (
        Block(
            name="loss",
            kind="loss",
            module=NceLoss(candidates.noise),
            after=("dot", "candidates"),
            reads=("labels", "weights"),
        )
        if loss == "nce"
        else loss_block(loss)
    )
    return [
        Block(name="context_embedding", kind="embedding", module=context, after=(), reads=("ids", "offsets")),
        Block(name="candidates", kind="other", module=candidates, after=(), reads=("ids", "offsets", "sample_ids")),
        Block(name="output_embedding", kind="embedding", module=outputs, after=("candidates",)),
        Block(name="dot", kind="other", module=Dot(), after=("context_embedding", "output_embedding")),
        last,
    ]


def next_scores(graph: LayerGraph, batch: Batch) -> Tensor:
    """Return the score of every row after every sample's context: [n, rows], without gradients."""
    outputs = graph.layers.output_embedding
    if not isinstance(outputs, Outputs):
        raise ModelError("this model has no rows to rank", hint="recall is for `matchnet` and `nce`")
    with torch.no_grad():
        context = graph.run(batch, last=0, keep=("context_embedding",))["context_embedding"]
        return context @ outputs.weight.T
