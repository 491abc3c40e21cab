"""From any module that torch.fx can trace to a graph of blocks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from dovetail.models.block import Block
from dovetail.models.errors import ModelError
from dovetail.models.kinds import kind_of
from dovetail.spec.layer import LayerKind

_SIZE_METHODS = {"size", "dim", "numel", "ndimension", "stride"}
_SIZE_ATTRIBUTES = {"shape", "ndim", "device", "dtype"}
_ARITHMETIC: set[Any] = {
    operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.neg, len,
}  # fmt: skip


class LayerTracer(fx.Tracer):
    """Follows calls into modules down to layers: PyTorch's, Dovetail's, and all that have parameters of their own."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Say whether a module is one layer."""
        own = any(True for _ in m.parameters(recurse=False))
        return own or type(m).__module__.startswith("dovetail.") or super().is_leaf_module(m, module_qualified_name)


class Traced(nn.Module):
    """One call of a traced model: a module, function or method with some arguments fixed and the others its inputs."""

    def __init__(self, node: fx.Node, target: nn.Module | nn.Parameter | None, inputs: list[fx.Node]) -> None:
        """Keep the call; `inputs` are the nodes whose values will be given, in that order."""
        super().__init__()
        if isinstance(target, nn.Module):
            self.inner = target
        self._node, self._inputs = node, inputs

    def forward(self, *values: Any) -> Any:
        """Return the value of the call for the given inputs."""
        return self._value(self._node, dict(zip(self._inputs, values, strict=True)))

    def _value(self, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
        """Return the value of a node, working out sizes that lead to it on the way."""
        if node in known:
            return known[node]
        args = fx.node.map_arg(node.args, lambda inner: self._value(inner, known))
        kwargs = fx.node.map_arg(node.kwargs, lambda inner: self._value(inner, known))
        if node.op == "call_module":
            return self.inner(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        function: Callable[..., Any] = node.target  # type: ignore[assignment]
        return function(*args, **kwargs)


def blocks_of_traced(model: nn.Module) -> list[Block]:
    """Return one block for every call in the model's forward, whose arguments are named like fields of a batch."""
    graph = _trace(model)
    sizes = {node for node in graph.nodes if _is_size(node)}
    for node in graph.nodes:  # arithmetic on sizes is a size, too
        inputs = node.all_input_nodes
        if node.op == "call_function" and node.target in _ARITHMETIC and inputs and sizes.issuperset(inputs):
            sizes.add(node)
    blocks = [_block(model, node, sizes) for node in graph.nodes if _is_layer(node) and node not in sizes]
    if not blocks:
        raise ModelError(f"{type(model).__name__} calls no layers", hint="give it at least one")
    return blocks


def _trace(model: nn.Module) -> fx.Graph:
    """Return the model's calls, or say why they cannot be told."""
    try:
        graph = fx.GraphModule(model, LayerTracer().trace(model)).graph
    except Exception as problem:
        reason = " ".join(str(problem).split())[:200]
        raise ModelError(
            f"{type(model).__name__} cannot be divided into layers: torch.fx says: {reason}",
            hint="avoid branching on values of tensors in forward, or build the model as an nn.Sequential or a "
            "dovetail.models.LayerGraph",
        ) from None
    for node in graph.nodes:
        if node.op == "get_attr":
            raise ModelError(
                f"forward of {type(model).__name__} uses `{node.target}` itself, outside any layer",
                hint="move it and what is done with it into a module of its own",
            )
    (output,) = (node for node in graph.nodes if node.op == "output")
    if not isinstance(output.args[0], fx.Node):
        raise ModelError(
            f"forward of {type(model).__name__} returns several values", hint="return one tensor: the scores"
        )
    graph.eliminate_dead_code()
    return graph


def _block(model: nn.Module, node: fx.Node, sizes: set[fx.Node]) -> Block:
    inputs = _inputs(node, sizes)
    layers = [inner for inner in inputs if inner.op != "placeholder"]
    fields = [inner for inner in inputs if inner.op == "placeholder"]
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    plain = module is not None and not node.kwargs and list(node.args) == [*layers, *fields]
    kind = kind_of(module) if module is not None else _function_kind(node)
    return Block(
        name=node.name,
        kind=kind,
        module=module if plain and module is not None else Traced(node, module, [*layers, *fields]),
        after=tuple(inner.name for inner in layers),
        reads=tuple(str(inner.target) for inner in fields),
    )


def _inputs(node: fx.Node, sizes: set[fx.Node]) -> list[fx.Node]:
    """Return the tensors a call needs: its arguments, and those whose sizes are among its arguments."""
    found: dict[fx.Node, None] = {}
    for inner in node.all_input_nodes:
        for needed in _inputs(inner, sizes) if inner in sizes else [inner]:
            found[needed] = None
    return list(found)


def _is_layer(node: fx.Node) -> bool:
    """Say whether a node computes something."""
    return node.op in ("call_module", "call_function", "call_method")


def _is_size(node: fx.Node) -> bool:
    """Say whether a node is a size or the like of a tensor, which is worked out where it is used."""
    if node.op == "call_method":
        return node.target in _SIZE_METHODS
    return node.op == "call_function" and node.target is getattr and node.args[1] in _SIZE_ATTRIBUTES


def _function_kind(node: fx.Node) -> LayerKind:
    """Return the kind of a function or method, by its name."""
    name = str(getattr(node.target, "__name__", node.target))
    if node.target in (torch.cat, torch.stack, torch.concat) or name in ("cat", "stack", "concat"):
        return "concat"
    activations = ("relu", "sigmoid", "tanh", "gelu", "silu", "softmax", "leaky_relu", "elu")
    return "activation" if name.strip("_") in activations else "other"
