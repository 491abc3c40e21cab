"""A look at some samples before anything starts: whether the model takes them, and what it is to learn.

The model answers once, in evaluation and without gradients. Rows that lie on servers are stood in for by zeros; ids are
checked against the sizes of PyTorch's tables, as PyTorch would, with the column in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.data.batch import Batch, concatenate
from dovetail.data.schema import Schema
from dovetail.data.source import Source
from dovetail.errors import DovetailError
from dovetail.models.answers import LossSpec, Scores, heads_of
from dovetail.models.embedding import SlotEmbedding
from dovetail.models.errors import ModelError
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.task import check_task, infer_loss, usual_metrics
from dovetail.models.whole import WholeModel
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.model.ids import check_ids

PLACES, SAMPLES = 4, 64
"""Samples are looked at in so many places, so many each: data may be sorted by label."""


class Objective:
    """What a model is to learn."""

    def __init__(self, loss: LossSpec | None, metrics: tuple[str, ...], flops: float | None = None) -> None:
        """Keep the loss, None where the model has its own, the metrics, and what a forward pass of a sample takes."""
        self.loss, self.metrics, self.flops = loss, metrics, flops


def dry_run(
    model: LayerGraph | WholeModel,
    source: Source,
    *,
    samples: int,
    loss: LossSpec | None,
    bare: bool = False,
    counts: bool = False,
) -> Objective:
    """Return the task of a model on data of which an epoch has `samples`; refuse what cannot be trained.

    `loss` is what the user asked for. Where the model fails, its own exception comes out if `bare`. With `counts` the
    operations of a forward pass are counted, which takes a second of loading.
    """
    batch = some_samples(source, samples)
    if not batch.num_samples:
        return Objective(loss, () if isinstance(model, WholeModel) else _own_metrics(model))
    flops = None
    if counts and not _is_compiled(model):
        from dovetail.runtime.model.work import OperationCounter  # noqa: PLC0415 - loads much of PyTorch's compiler

        with OperationCounter(model) as work:
            scores = _answer(model, batch, source.schema, bare=bare)
        flops = work.of_each(batch.num_samples)
    else:
        scores = _answer(model, batch, source.schema, bare=bare)
    check_rows(scores, batch)
    if isinstance(model, WholeModel):
        if model.loss is None:
            if loss is None:
                own = _own_losses(model, scores, source, samples, bare=bare)
                loss = infer_loss(scores, batch.labels, own)
            model = WholeModel(model.module, loss=loss, recipe=model.recipe)
        model.check_weights(batch)
        if loss is not None:
            check_task(loss, scores, batch.labels)
        _check_loss(model, scores, batch, bare=bare)
        return Objective(loss, usual_metrics(loss, scores) if loss is not None else (), flops)
    check_task(model.recipe.loss, scores, batch.labels)
    if batch.weights is not None and "weights" not in model.blocks[-1].reads:
        raise TrainingError(
            "the data have weights, and the loss of this graph does not read them",
            hint='let its last block have reads=("labels", "weights")',
        )
    return Objective(loss, _own_metrics(model), flops)


def _is_compiled(model: nn.Module) -> bool:
    """Say whether a part of the model was compiled by its user: nobody sees what that computes."""
    return any(hasattr(module, "_orig_mod") for module in model.modules())


def check_rows(scores: Scores, batch: Batch) -> None:
    """Refuse an answer that has another number of rows than there are samples."""
    for name, part in ({"": scores} if isinstance(scores, Tensor) else heads_of(scores)).items():
        if isinstance(part, Tensor) and part.dim() and part.shape[0] != batch.num_samples:
            called = f"part `{name}` of the model's answer" if name else "the model's answer"
            raise ModelError(
                f"{called} has {part.shape[0]} rows for {batch.num_samples} samples: its shape is {list(part.shape)}",
                hint="answer one row a sample, in their order; ids of all slots come one after the other, with "
                "`offsets` where each begins",
            )


def _check_loss(model: WholeModel, scores: Scores, batch: Batch, *, bare: bool) -> None:
    """Refuse a loss that cannot be computed, or that gives no value a sample."""
    try:
        with torch.no_grad():
            model.loss(scores, batch.labels)  # type: ignore[misc]
    except DovetailError:
        raise
    except Exception as problem:
        if bare:
            raise
        labels = f"labels of shape {list(batch.labels.shape)}"
        if isinstance(scores, Tensor):
            given = f"scores of shape {list(scores.shape)} and {labels}"
        else:
            given = f"the model's answer, with the parts {', '.join(heads_of(scores))}, and {labels}; a loss for each "
            given += "part is a table or dict of them"
        raise ModelError(
            f"the loss fails on the first samples: {type(problem).__name__}: {problem}", hint=f"it was given {given}"
        ) from problem


def _own_losses(model: WholeModel, scores: Scores, source: Source, samples: int, *, bare: bool) -> dict[str, str]:
    """Return whether each part of an answer that is one number is the mean of the samples' or their sum.

    Over two halves of some samples a mean counts each by its samples, and a sum adds up.
    """
    numbers = [name for name, part in _parts(scores).items() if not part.dim()]
    if not numbers:
        return {}
    last = min(samples, 2 * SAMPLES)
    pieces = [source.read(*ends) for ends in ((0, last), (0, last // 3), (last // 3, last))]
    pieces = [piece for piece in pieces if piece.num_samples]
    found = [_parts(_answer(model, piece, source.schema, bare=bare)) for piece in pieces]
    counts = [float(piece.num_samples) for piece in pieces]
    own = {}
    for name in numbers:
        whole, *parts = (float(each[name]) for each in found)
        mean = sum(part * count for part, count in zip(parts, counts[1:], strict=True)) / counts[0]
        close = max(1e-6, 1e-3 * abs(whole))
        if len(parts) < 2 or abs(whole - mean) <= close:
            own[name] = "answer-mean"
        elif abs(whole - sum(parts)) <= close:
            own[name] = "answer-sum"
        else:
            called = f"part `{name}` of the model's answer" if name else "the model's answer"
            raise ModelError(
                f"{called} is one number, and neither the mean nor the sum of its samples' losses: {whole:g} for "
                f"{counts[0]:g} samples, {parts[0]:g} and {parts[1]:g} for two parts of them",
                hint='a step would depend on how a batch is split; loss = "answer-mean" trains all the same, and '
                "counts each part by its samples",
            )
    return own


def _parts(scores: Scores) -> dict[str, Tensor]:
    """Return the parts of an answer; one that has none is called by no name."""
    return {"": scores} if isinstance(scores, Tensor) else heads_of(scores)


def some_samples(source: Source, samples: int) -> Batch:
    """Return samples from several places of an epoch."""
    if samples <= PLACES * SAMPLES:
        return source.read(0, samples)
    starts = [samples * place // PLACES for place in range(PLACES)]
    return concatenate([source.read(start, start + SAMPLES) for start in starts])


def _own_metrics(model: LayerGraph) -> tuple[str, ...]:
    """Return the metric of a graph's recipe, where it has one."""
    return (model.recipe.metric,) if model.recipe.metric != "none" else ()


def _answer(model: LayerGraph | WholeModel, batch: Batch, schema: Schema, *, bare: bool) -> Scores:
    """Return what a model answers; it is afterwards as it was."""
    modes = {module: module.training for module in model.modules()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.random.fork_rng(devices=[]))
            for module in model.modules():
                stack.enter_context(_stood_in_for(module, batch, schema))
            model.eval()
            return model.predict(batch)
    except DovetailError:
        raise
    except Exception as problem:
        if bare:
            raise
        hint = f"it was given {_in_words(batch, schema)}; `dovetail train --in-process` shows where it fails"
        floats = [name for name, tensor in batch.extra.items() if tensor.is_floating_point()]
        if floats and "scalar types: Long, Int" in str(problem):
            hint = f"say which fields are whole numbers, such as ids: whole={floats!r} (an option of the data); {hint}"
        if "could not create a primitive" in str(problem):
            hint = "this machine lacks what its CPU says it has: set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, and try again"
        raise ModelError(
            f"the model fails on the first samples: {type(problem).__name__}: {problem}", hint=hint
        ) from problem
    finally:
        for module, mode in modes.items():
            module.training = mode
        for name, buffer in model.named_buffers():
            if name in buffers and buffer.shape == buffers[name].shape:
                buffer.copy_(buffers[name])


def _in_words(batch: Batch, schema: Schema) -> str:
    """Return what a batch has, and of which columns."""
    words = [f"`dense` {list(batch.dense.shape)} ({', '.join(schema.dense) or 'no numbers'})"]
    if schema.slots:
        slots = ", ".join(slot.name + " (many)" * slot.multi_valued for slot in schema.slots)
        words.append(f"`ids` {list(batch.ids.shape)} and `offsets` {list(batch.offsets.shape)} of {slots}")
    words += [f"`{name}` {list(tensor.shape)} {str(tensor.dtype)[6:]}" for name, tensor in batch.extra.items()]
    return ", ".join(words)


@contextmanager
def _stood_in_for(module: nn.Module, batch: Batch, schema: Schema) -> Iterator[None]:
    """Have a table that is not here answer zeros, and one of PyTorch's check its ids."""
    if isinstance(module, SlotEmbedding) and module.weight.is_meta and module.row_source is None:
        module.row_source = _Zeros(module.width)
        try:
            yield
        finally:
            module.row_source = None
    elif isinstance(module, nn.Embedding | nn.EmbeddingBag):

        def check(of: Any, arguments: tuple[Any, ...]) -> None:
            if arguments and isinstance(arguments[0], Tensor):
                check_ids(arguments[0], of.num_embeddings, batch, schema)

        handle = module.register_forward_pre_hook(check)
        try:
            yield
        finally:
            handle.remove()
    else:
        yield


class _Zeros:
    """A row source of zeros."""

    def __init__(self, width: int) -> None:
        self._width = width

    def look_up(self, keys: Tensor, offsets: Tensor, mode: str) -> Tensor:
        """Return one vector a bag."""
        return torch.zeros(offsets.shape[0] - 1, self._width)

    def rows(self, keys: Tensor) -> Tensor:
        """Return one vector a key."""
        return torch.zeros(*keys.shape, self._width)
