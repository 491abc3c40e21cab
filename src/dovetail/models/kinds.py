"""Which kind of layer a module is."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import batchnorm, conv, instancenorm, loss, normalization

from dovetail.models.embedding import SlotEmbedding
from dovetail.spec.layer import LayerKind

_BY_CLASS: tuple[tuple[tuple[type, ...], LayerKind], ...] = (
    ((SlotEmbedding, nn.Embedding, nn.EmbeddingBag), "embedding"),
    ((nn.Linear, nn.Bilinear), "fc"),
    ((conv._ConvNd,), "conv"),
    ((nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer), "attention"),
    ((batchnorm._NormBase, instancenorm._InstanceNorm, normalization.LayerNorm, nn.GroupNorm, nn.RMSNorm), "norm"),
    ((loss._Loss,), "loss"),
)


def kind_of(module: nn.Module) -> LayerKind:
    """Return the kind of a module, by its class; that of its only part where it has one part."""
    for classes, kind in _BY_CLASS:
        if isinstance(module, classes):
            return kind
    if type(module).__module__ == "torch.nn.modules.activation":
        return "activation"
    parts = list(module.children())
    return kind_of(parts[0]) if len(parts) == 1 else "other"
