"""Layers that keep what the gradients of single samples are made of, in place of the gradients of their parameters.

A layer runs as it always does, once forward and once back. Back, it gives its inputs their gradients, and notes what
came for its outputs. The parameters themselves get no gradient from autograd: one that comes all the same was used
outside of its layer, and nobody could say whose it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from dovetail.runtime.worker.compute.per_sample.contributions import (
    MOST_NUMBERS,
    Contributions,
    LookedUp,
    OuterProducts,
    Written,
)


class NotBySample(Exception):  # noqa: N818 - not an error: the samples are computed one by one then
    """Why gradients of single samples cannot be told apart in a batch."""


Found = list[tuple[Tensor, Contributions]]
"""What was contributed to which parameter."""


class Watch:
    """What a backward pass notes; the layers of one model share it."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self.is_on = False
        """Whether layers keep samples apart; off, they run as without."""
        self.num_samples = 0
        self._noted: list[Callable[[], Found]] = []

    def begin(self, num_samples: int) -> None:
        """Watch a batch of so many samples."""
        self.is_on, self.num_samples, self._noted = True, num_samples, []

    def end(self) -> None:
        """Forget what was noted, and watch no longer."""
        self.is_on, self._noted = False, []

    def note(self, made: Callable[[], Found]) -> None:
        """Keep what makes contributions, once the backward pass is done."""
        self._noted.append(made)

    def contributions(self) -> dict[Tensor, list[Contributions]]:
        """Return what was noted, by parameter."""
        found: dict[Tensor, list[Contributions]] = {}
        for made in self._noted:
            for parameter, each in made():
                found.setdefault(parameter, []).append(each)
        return found

    def must_be_of_samples(self, tensor: Tensor, layer: nn.Module) -> None:
        """Refuse a tensor whose rows are not samples."""
        if tensor.dim() < 2 or len(tensor) != self.num_samples:
            raise NotBySample(
                f"a {type(layer).__name__} got a tensor of shape {list(tensor.shape)} for {self.num_samples} samples"
            )


class _Noting(torch.autograd.Function):
    """Passes a tensor on, and notes the gradient that comes back for it; `anchor` has autograd come here."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, anchor: Tensor, note: Callable[[Tensor], None]) -> Tensor:  # noqa: ARG004
        """Return the tensor, in memory of its own: layers that follow may change it where it is."""
        ctx.note = note
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Note the gradient."""
        ctx.note(gradients[0])
        return gradients[0], None, None


class _Linear(torch.autograd.Function):
    """A linear layer whose parameters get no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        anchor: Tensor,  # noqa: ARG004
        note: Callable[[Tensor, Tensor], None],
    ) -> Tensor:
        """Return the layer's output."""
        ctx.save_for_backward(value, weight)
        ctx.note = note
        if value.dim() == 2:
            return functional.linear(value, weight, bias)
        out = value.new_empty(*value.shape[:-1], len(weight))  # no view: layers that follow may change it where it is
        torch.matmul(value.reshape(-1, value.shape[-1]), weight.T, out=out.view(-1, len(weight)))
        return out if bias is None else out.add_(bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the input, and note that of the output."""
        value, weight = ctx.saved_tensors
        ctx.note(value.detach(), gradients[0])
        return (gradients[0] @ weight if ctx.needs_input_grad[0] else None), None, None, None, None


def _linear(layer: nn.Linear, watch: Watch) -> Callable[..., Tensor]:
    """Return the forward pass of a linear layer, of inputs [n, in] or [n, ..., in]."""

    def forward(input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        if not watch.is_on or not torch.is_grad_enabled():
            return functional.linear(input, layer.weight, layer.bias)
        watch.must_be_of_samples(input, layer)

        def note(value: Tensor, gradient: Tensor) -> None:
            inputs, outputs = (each.reshape(len(each), -1, each.shape[-1]) for each in (value, gradient))

            def made() -> Found:
                found: Found = []
                if layer.weight.requires_grad:
                    found.append((layer.weight, OuterProducts(inputs, outputs)))
                if layer.bias is not None and layer.bias.requires_grad:
                    found.append((layer.bias, Written(outputs.sum(dim=1))))
                return found

            watch.note(made)

        bias = None if layer.bias is None else layer.bias.detach()
        result: Tensor = _Linear.apply(input, layer.weight.detach(), bias, _anchor(), note)  # type: ignore[no-untyped-call]
        return result

    return forward


def _scaled(
    layer: nn.Module, watch: Watch, compute: Callable[[Tensor, Tensor | None, Tensor | None], Tensor], *, channel: bool
) -> Callable[..., Tensor]:
    """Return the forward pass of a layer that normalises a sample: y = weight h + bias, where h knows no parameters.

    With `channel`, weight and bias have one number for each entry of dimension 1; else they are as the last dimensions.
    """
    weight: nn.Parameter | None = layer.weight  # type: ignore[assignment]
    bias: nn.Parameter | None = getattr(layer, "bias", None)

    def forward(input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        if not watch.is_on or not torch.is_grad_enabled():
            return compute(input, weight, bias)
        watch.must_be_of_samples(input, layer)
        value = input.detach()

        def note(gradient: Tensor) -> None:
            def made() -> Found:
                found: Found = []
                if weight is not None and weight.requires_grad:
                    found.append((weight, Written(_gathered(gradient * compute(value, None, None), weight, channel))))
                if bias is not None and bias.requires_grad:
                    found.append((bias, Written(_gathered(gradient, bias, channel))))
                return found

            watch.note(made)

        own = [None if each is None else each.detach() for each in (weight, bias)]
        result: Tensor = _Noting.apply(compute(input, *own), _anchor(), note)  # type: ignore[no-untyped-call]
        return result

    return forward


def _gathered(products: Tensor, parameter: Tensor, channel: bool) -> Tensor:
    """Return the sums over all but the samples' dimension and the parameter's own."""
    if channel:
        return products.flatten(2).sum(dim=2) if products.dim() > 2 else products
    return products.reshape(len(products), -1, *parameter.shape).sum(dim=1)


def _layer_norm(layer: nn.LayerNorm, watch: Watch) -> Callable[..., Tensor]:
    def compute(value: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return functional.layer_norm(value, layer.normalized_shape, weight, bias, layer.eps)

    return _scaled(layer, watch, compute, channel=False)


def _rms_norm(layer: nn.RMSNorm, watch: Watch) -> Callable[..., Tensor]:
    def compute(value: Tensor, weight: Tensor | None, _: Tensor | None) -> Tensor:
        return functional.rms_norm(value, list(layer.normalized_shape), weight, layer.eps)

    return _scaled(layer, watch, compute, channel=False)


def _group_norm(layer: nn.GroupNorm, watch: Watch) -> Callable[..., Tensor]:
    def compute(value: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return functional.group_norm(value, layer.num_groups, weight, bias, layer.eps)

    return _scaled(layer, watch, compute, channel=True)


def _embedding(layer: nn.Embedding, watch: Watch) -> Callable[..., Tensor]:
    """Return the forward pass of a table that is a dense parameter."""

    def forward(input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        if not watch.is_on or not torch.is_grad_enabled():
            return nn.Embedding.forward(layer, input)
        watch.must_be_of_samples(input[:, None] if input.dim() == 1 else input, layer)

        def note(gradient: Tensor) -> None:
            ids, given = input.reshape(len(input), -1), gradient.reshape(len(input), -1, gradient.shape[-1])
            if layer.padding_idx is not None:
                given = given * (ids != layer.padding_idx)[:, :, None]
            watch.note(lambda: [(layer.weight, LookedUp(ids, given, layer.num_embeddings))])

        found = functional.embedding(input, layer.weight.detach())
        result: Tensor = _Noting.apply(found, _anchor(), note)  # type: ignore[no-untyped-call]
        return result

    return forward


def _anchor() -> Tensor:
    """Return something that autograd wants to come to."""
    return torch.empty(0, requires_grad=True)


def _any(layer: nn.Module, watch: Watch) -> Callable[..., Any]:
    """Return the forward pass of a layer without a rule: what came in goes through it again, sample by sample.

    It is slower, and writes the gradients of all samples out.
    """
    original = layer.forward

    def forward(*inputs: Any, **named: Any) -> Any:
        if not watch.is_on or not torch.is_grad_enabled():
            return original(*inputs, **named)
        parameters = {name: each for name, each in layer.named_parameters() if each.requires_grad}
        detached = {name: each.detach() for name, each in parameters.items()}
        values = [*inputs, *named.values()]
        names = list(named)
        if not any(isinstance(each, Tensor) and len(each.shape) and len(each) == watch.num_samples for each in values):
            raise NotBySample(f"a {type(layer).__name__} got nothing that has one row a sample")

        def run(own: Mapping[str, Tensor], given: Sequence[Any]) -> Any:
            layer.forward = original
            try:
                count = len(given) - len(names)
                return functional_call(
                    layer, dict(own), tuple(given[:count]), dict(zip(names, given[count:], strict=True))
                )
            finally:
                layer.forward = forward

        outputs = run(detached, values)
        kept = [each.detach() if isinstance(each, Tensor) else each for each in values]
        gradients: dict[int, Tensor] = {}
        parts = outputs if isinstance(outputs, tuple) else (outputs,)
        for each in parts:
            if isinstance(each, Tensor) and (each.dim() == 0 or len(each) != watch.num_samples):
                raise NotBySample(f"a {type(layer).__name__} answered a tensor of shape {list(each.shape)}")
            if each is not None and not isinstance(each, Tensor):
                raise NotBySample(f"a {type(layer).__name__} answered a {type(each).__name__} among others")
        noted = tuple(
            _Noting.apply(each, _anchor(), lambda gradient, place=place: gradients.__setitem__(place, gradient))  # type: ignore[no-untyped-call]
            if isinstance(each, Tensor) and each.is_floating_point()
            else each
            for place, each in enumerate(parts)
        )

        def made() -> Found:
            if not gradients:
                return []
            each = _of_each(run, detached, kept, gradients, watch.num_samples)
            return [(parameters[name], Written(found)) for name, found in each.items()]

        watch.note(made)
        return noted if isinstance(outputs, tuple) else noted[0]

    return forward


def _of_each(
    run: Callable[[Mapping[str, Tensor], Sequence[Any]], Any],
    own: Mapping[str, Tensor],
    values: Sequence[Any],
    gradients: Mapping[int, Tensor],
    num_samples: int,
) -> dict[str, Tensor]:
    """Return the gradients of a layer's parameters, sample by sample, given those of its outputs."""
    is_theirs = [isinstance(each, Tensor) and each.dim() > 0 and len(each) == num_samples for each in values]
    theirs = [each for each, is_one in zip(values, is_theirs, strict=True) if is_one]
    given = list(gradients.values())

    def product(parameters: dict[str, Tensor], mine: list[Tensor], back: list[Tensor]) -> Tensor:
        rest = iter(mine)
        inputs = [next(rest)[None] if is_one else each for each, is_one in zip(values, is_theirs, strict=True)]
        outputs = run(parameters, inputs)
        parts = outputs if isinstance(outputs, tuple) else (outputs,)
        return torch.stack([(parts[at][0] * each).sum() for at, each in zip(gradients, back, strict=True)]).sum()

    size = max(1, sum(each.numel() for each in own.values()))
    at_once = max(1, min(num_samples, MOST_NUMBERS // size))
    each = vmap(grad(product), in_dims=(None, 0, 0), randomness="error", chunk_size=at_once)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # that it is slow is said already
            found: dict[str, Tensor] = each(dict(own), theirs, given)
    except (RuntimeError, ValueError, NotImplementedError) as problem:
        raise NotBySample(f"PyTorch cannot go through it sample by sample: {str(problem).splitlines()[0]}") from None
    return found


RULES: dict[type[nn.Module], Callable[[Any, Watch], Callable[..., Any]]] = {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.GroupNorm: _group_norm,
    nn.Embedding: _embedding,
}
"""Layers whose gradients of single samples are known without writing them out, or are short."""


def has_rule(layer: nn.Module) -> bool:
    """Say whether a layer is one of those with a rule, used as it is."""
    if type(layer) not in RULES or "forward" in vars(layer) or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq
    return True


def watched(model: nn.Module, trained: set[nn.Parameter], watch: Watch) -> Iterator[tuple[nn.Module, bool]]:
    """Have all layers of a model that own trained parameters note what samples contribute; yield each, and its rule.

    A layer without a rule is taken as a whole, with what it is made of.
    """
    own = [each for each in model.parameters(recurse=False) if each in trained]
    if own and has_rule(model):
        yield model, True
        model.forward = RULES[type(model)](model, watch)
    elif own:
        yield model, False
        model.forward = _any(model, watch)
    else:
        for child in model.children():
            yield from watched(child, trained, watch)
