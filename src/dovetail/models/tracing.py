"""From `nn.Sequential`, or any module that torch.fx can trace, to a graph of blocks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from os import sep
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import batchnorm, conv, instancenorm, loss, normalization

from dovetail.models.block import Block
from dovetail.models.embedding import SlotEmbedding
from dovetail.models.errors import ModelError
from dovetail.spec.layer import LayerKind

_BY_CLASS: tuple[tuple[tuple[type, ...], LayerKind], ...] = (
    ((SlotEmbedding, nn.Embedding, nn.EmbeddingBag), "embedding"),
    ((nn.Linear, nn.Bilinear), "fc"),
    ((conv._ConvNd,), "conv"),
    ((nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer), "attention"),
    ((batchnorm._NormBase, instancenorm._InstanceNorm, normalization.LayerNorm, nn.GroupNorm, nn.RMSNorm), "norm"),
    ((loss._Loss,), "loss"),
)

_SIZE_METHODS = {"size", "dim", "numel", "ndimension", "stride"}
_SIZE_ATTRIBUTES = {"shape", "ndim", "device", "dtype"}
_ARITHMETIC: set[Any] = {
    operator.getitem,
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.truediv,
    operator.neg,
    len,
}


def kind_of(module: nn.Module) -> LayerKind:
    """Return the kind of a module, by its class; that of its only part where it has one part."""
    for classes, kind in _BY_CLASS:
        if isinstance(module, classes):
            return kind
    if type(module).__module__ == "torch.nn.modules.activation":
        return "activation"
    parts = list(module.children())
    return kind_of(parts[0]) if len(parts) == 1 else "other"


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


class LayerTracer(fx.Tracer):
    """Follows calls into modules down to layers: PyTorch's, Dovetail's, and all that have parameters of their own."""

    proxy_buffer_attributes = True
    """Else what is made of a buffer would be a number of the day that it was traced."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Say whether a module is one layer."""
        own = any(True for _ in m.parameters(recurse=False))
        return own or type(m).__module__.startswith("dovetail.") or super().is_leaf_module(m, module_qualified_name)


class Traced(nn.Module):
    """One call of a traced model: a module, function or method with some arguments fixed and the others its inputs."""

    def __init__(
        self,
        node: fx.Node,
        target: nn.Module | nn.Parameter | None,
        inputs: list[fx.Node],
        held: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Keep the call; `inputs` are the nodes whose values will be given, in that order.

        `held` are parameters and buffers that the model's forward uses itself, by their names there.
        """
        super().__init__()
        if isinstance(target, nn.Module):
            self.inner = target
        for name, tensor in (held or {}).items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(_plain(name), tensor)
            else:
                self.register_buffer(_plain(name), tensor)
        self._node, self._inputs = node, inputs

    def forward(self, *values: Any) -> Any:
        """Return the value of the call for the given inputs."""
        return self._value(self._node, dict(zip(self._inputs, values, strict=True)))

    def _value(self, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
        """Return the value of a node, working out sizes that lead to it on the way."""
        if node in known:
            return known[node]
        if node.op == "get_attr":
            return getattr(self, _plain(str(node.target)))
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
    sizes = {node for node in graph.nodes if _is_size(node) or node.op == "get_attr"}
    fixed = {node for node in sizes if node.op == "get_attr"}
    for node in graph.nodes:  # arithmetic on sizes is a size, too, and what is made of the model's own tensors alone
        inputs = node.all_input_nodes
        if node.op in ("call_function", "call_method") and inputs and fixed.issuperset(inputs):
            fixed.add(node)
            sizes.add(node)
        elif node.op == "call_function" and node.target in _ARITHMETIC and inputs and sizes.issuperset(inputs):
            sizes.add(node)
    whole = _several_values(model, graph)
    blocks = [
        _block(model, node, sizes, whole)
        for node in graph.nodes
        if _is_layer(node) and node not in sizes and node not in whole.values()
    ]
    if not blocks:
        raise ModelError(f"{type(model).__name__} calls no layers", hint="give it at least one")
    return blocks


def _trace(model: nn.Module) -> fx.Graph:
    """Return the model's calls, or say why they cannot be told, or are others in training than in evaluation."""
    modes = {module: module.training for module in model.modules()}
    try:
        graphs = [_trace_as_is(model.train(mode)) for mode in (True, False)]
    finally:
        for module, mode in modes.items():
            module.training = mode
    differs = next((one for one, other in _side_by_side(*graphs) if _call(one) != _call(other)), None)
    if differs is not None:
        raise ModelError(
            f"forward of {type(model).__name__} does other things in training than in evaluation: {_line(differs)}",
            hint="what is divided into layers has one course: put this into a module of its own, such as nn.Dropout "
            "(only profiling and planning divide a model; training runs it as it is)",
        )
    return graphs[0]


def _side_by_side(one: fx.Graph, other: fx.Graph) -> list[tuple[fx.Node | None, fx.Node | None]]:
    """Return the calls of two graphs in pairs."""
    return list(zip_longest(one.nodes, other.nodes))


def _call(node: fx.Node | None) -> Any:
    """Return what is called with what, in words that are the same for the same call."""
    if node is None:
        return None
    known = fx.node.map_arg((node.args, node.kwargs), lambda inner: inner.name)
    return node.op, str(node.target), repr(known)


def _line(node: fx.Node | None) -> str:
    """Return the line of the user's code that makes a call."""
    lines = [line.strip() for line in str(getattr(node, "stack_trace", None) or "").splitlines() if line.strip()]
    places = [at for at, line in enumerate(lines) if line.startswith("File ") and f"{sep}torch{sep}" not in line]
    if not places:
        return "it ends elsewhere"
    file, number, *_ = lines[places[-1]].removeprefix("File ").split(", ")
    code = lines[places[-1] + 1] if places[-1] + 1 < len(lines) else ""
    return f"{number} of {Path(file.strip(chr(34))).name}: {code}"


def _trace_as_is(model: nn.Module) -> fx.Graph:
    """Return the model's calls in the mode that it is in."""
    tracer = LayerTracer()
    tracer.record_stack_traces = True
    try:
        graph = fx.GraphModule(model, tracer.trace(model)).graph
    except Exception as problem:
        reason = " ".join(str(problem).split())[:200]
        raise ModelError(
            f"{type(model).__name__} cannot be divided into layers: torch.fx says: {reason}",
            hint="avoid branching on values of tensors in forward, or build the model as an nn.Sequential or a "
            "dovetail.models.LayerGraph",
        ) from None
    (output,) = (node for node in graph.nodes if node.op == "output")
    if not isinstance(output.args[0], fx.Node):
        raise ModelError(
            f"forward of {type(model).__name__} returns several values", hint="return one tensor: the scores"
        )
    graph.eliminate_dead_code()
    return graph


def _several_values(model: nn.Module, graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Return the calls of modules that return several values, as an LSTM does, by the one value that is used."""
    found: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "call_module" and node.users and all(map(_is_one_of_several, node.users)):
            if len(node.users) > 1:
                raise ModelError(
                    f"forward of {type(model).__name__} uses several values of `{node.target}`: {_line(node)}",
                    hint="put it into a module of its own that returns one tensor",
                )
            found[next(iter(node.users))] = node
    return found


def _is_one_of_several(node: fx.Node) -> bool:
    """Say whether a node takes one value out of a tuple."""
    return node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[1], int)


def _block(model: nn.Module, node: fx.Node, sizes: set[fx.Node], whole: dict[fx.Node, fx.Node]) -> Block:
    call = whole.get(node, node)
    needed = _inputs(call, sizes)
    held = {str(inner.target): _tensor(model, str(inner.target)) for inner in needed if inner.op == "get_attr"}
    inputs = [inner for inner in needed if inner.op != "get_attr"]
    if not inputs:
        raise ModelError(
            f"forward of {type(model).__name__} computes `{call.name}` of no field of the batch: {_line(call)}",
            hint="move it and what is done with it into a module of its own",
        )
    layers = [inner for inner in inputs if inner.op != "placeholder"]
    fields = [inner for inner in inputs if inner.op == "placeholder"]
    module = model.get_submodule(str(call.target)) if call.op == "call_module" else None
    plain = (
        not held and call is node and module is not None and not node.kwargs and list(node.args) == [*layers, *fields]
    )
    kind = kind_of(module) if module is not None else _function_kind(node)
    return Block(
        name=call.name,
        kind=kind,
        module=module if plain and module is not None else Traced(node, module, [*layers, *fields], held),
        after=tuple(whole.get(inner, inner).name for inner in layers),
        reads=tuple(str(inner.target) for inner in fields),
    )


def _inputs(node: fx.Node, sizes: set[fx.Node]) -> list[fx.Node]:
    """Return the tensors a call needs: its arguments, and those whose sizes are among its arguments."""
    found: dict[fx.Node, None] = {}
    for inner in node.all_input_nodes:
        for needed in _inputs(inner, sizes) if inner in sizes and inner.op != "get_attr" else [inner]:
            found[needed] = None
    return list(found)


def _plain(name: str) -> str:
    """Return a dotted name as one that a module may have for a tensor of its own."""
    return "held_" + name.replace(".", "_")


def _tensor(model: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer of a model."""
    owner, _, last = name.rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(owner), last)
    return tensor


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
