"""Models by name: the built-in ones, and users' own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import nn

from dovetail.data.schema import CRITEO_SCHEMA, Schema
from dovetail.data.streams import stream_number
from dovetail.errors import DovetailError, did_you_mean
from dovetail.models.answers import LossSpec
from dovetail.models.block import Block
from dovetail.models.errors import ModelError
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.losses import loss_block
from dovetail.models.recipe import RECIPES, Recipe
from dovetail.models.tracing import blocks_of_sequential, blocks_of_traced
from dovetail.models.whole import WholeModel
from dovetail.models.zoo import ctr_dnn, dlrm, matchnet, nce, two_embeddings
from dovetail.references import import_function


def check_options(name: str, maker: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options of another type than `maker` takes: whole numbers, numbers, text, and lists of them."""
    hints = get_type_hints(maker)
    for option, value in options.items():
        kind = hints.get(option)
        words = _words(kind)
        if words is not None and not _fits(value, kind):
            raise ModelError(
                f"`{name}` has {option} = {value!r}, expected {words[0]}", hint=f"e.g. {option}={words[1]}"
            )


def _words(kind: Any) -> tuple[str, str] | None:
    """Return what a type is called, and an example of it; None for types that are not checked."""
    if get_origin(kind) is Sequence and get_args(kind) == (int,):
        return "whole numbers", "64,32"
    return {int: ("a whole number", "100"), float: ("a number", "0.1"), str: ("a word", "name")}.get(kind)


def _fits(value: Any, kind: Any) -> bool:
    """Say whether a value is of a type."""
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is str:
        return isinstance(value, str)
    return isinstance(value, Sequence) and not isinstance(value, str) and all(_fits(each, int) for each in value)


def initialise(model: nn.Module, seed: int) -> None:
    """Draw the parameters of every module anew by the module's own rule, from (seed, the module's name in the model).

    Modules with parameters of their own but without `reset_parameters` keep the values they were made with.

    A process that builds only the layers of its own stage gets the values it would have in the whole model.
    """
    for name, module in model.named_modules():
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if callable(reset):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(stream_number(seed, f"parameters/{name}") >> 1)
                reset()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """A model that comes with Dovetail."""

    build: Callable[..., list[Block]]
    defaults: Callable[[], dict[str, Any]]
    """What `build` gets where its caller does not say: a schema at least."""


def _clicks_defaults() -> dict[str, Any]:
    """Return the schema of the public click log: 13 numbers, 26 slots."""
    return {"schema": CRITEO_SCHEMA}


def _match_defaults() -> dict[str, Any]:
    """Return the schema and the items of the generated user and item log."""
    from dovetail.data.clicks.matches import Matches  # noqa: PLC0415 - compiles, and is needed only here

    source = Matches()
    return {"schema": source.schema, "items": source.items()}


def _next_defaults() -> dict[str, Any]:
    """Return the schema of the generated log of contexts and what came next."""
    from dovetail.data.load import load_data  # noqa: PLC0415 - as above

    return {"schema": load_data("clicks", truth="next-item").schema}


MODELS: Mapping[str, BuiltIn] = {
    "ctr-dnn": BuiltIn(build=ctr_dnn.ctr_dnn, defaults=_clicks_defaults),
    "2emb": BuiltIn(build=two_embeddings.two_embeddings, defaults=_clicks_defaults),
    "dlrm": BuiltIn(build=dlrm.dlrm, defaults=_clicks_defaults),
    "matchnet": BuiltIn(build=matchnet.matchnet, defaults=_match_defaults),
    "nce": BuiltIn(build=nce.nce, defaults=_next_defaults),
}


def load_model(name: str, *, seed: int = 0, loss: str | None = None, **options: Any) -> LayerGraph:
    """Return a model as a graph, its initial values drawn from `seed`.

    `name` is one of `ctr-dnn`, `2emb`, `dlrm`, `matchnet`, `nce`, or `package.module:function`, called with `options`
    (and with `seed` where it takes one) for a LayerGraph, an nn.Sequential, or a module that torch.fx can trace. `loss`
    replaces the model's own choice; `schema` among the options is that of the data (absent: the public click log's).
    """
    if ":" in name:
        graph = as_graph(_made(name, seed=seed, options=options), loss=loss)
    elif name in MODELS:
        graph = _built_in(name, seed=seed, loss=loss, options=options)
    else:
        raise ModelError(
            f"there is no model `{name}`", hint=did_you_mean(name, MODELS) + ", or package.module:function for your own"
        )
    initialise(graph, seed)
    return graph


def load_whole(name: str, *, seed: int = 0, loss: LossSpec | None = None, **options: Any) -> LayerGraph | WholeModel:
    """Return a model to be trained in one piece: what a user's own function returns is run as it is.

    `name` and the rest are as for `load_model`. A built-in model is a graph all the same.
    """
    if ":" not in name:
        return load_model(name, seed=seed, loss=one_loss(loss), **options)
    model = as_whole(_made(name, seed=seed, options=options), loss=loss)
    if isinstance(model, LayerGraph):
        initialise(model, seed)
    return model


def as_whole(model: nn.Module, *, loss: LossSpec | Callable[..., Any] | None = None) -> LayerGraph | WholeModel:
    """Return a module as it is trained in one piece; without a `loss` it has that of its graph, or none yet."""
    if isinstance(model, LayerGraph):
        return as_graph(model, loss=one_loss(loss))
    if isinstance(model, WholeModel):
        return model if loss is None else WholeModel(model.module, loss=loss, recipe=model.recipe)
    return WholeModel(model, loss=loss)


def one_loss(loss: LossSpec | Callable[..., Any] | None) -> str | None:
    """Return a loss by its one name, which is all that a graph of layers takes."""
    if loss is None or isinstance(loss, str):
        return loss
    raise ModelError(
        "a graph of layers has one answer, and one loss by name",
        hint='e.g. loss = "logistic" or package.module:function',
    )


def as_graph(model: nn.Module, *, loss: str | None = None) -> LayerGraph:
    """Return a module as a graph that ends in a loss; its parameters are the module's own, each exactly once."""
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"a {type(model).__name__} is not a model",
            hint="return an nn.Sequential, a LayerGraph or another nn.Module",
        )
    if isinstance(model, WholeModel):
        model = model.module
    if isinstance(model, LayerGraph):
        recipe, blocks = model.recipe, list(model.blocks)
    else:
        recipe = Recipe()
        blocks = blocks_of_sequential(model) if isinstance(model, nn.Sequential) else blocks_of_traced(model)
    if loss is not None and blocks[-1].kind == "loss":
        blocks.pop()
    if blocks[-1].kind != "loss":
        blocks.append(loss_block(loss or recipe.loss, name=_free_name("loss", blocks)))
    scores = model.scores if isinstance(model, LayerGraph) else None
    graph = LayerGraph(blocks, scores=scores, recipe=replace(recipe, loss=loss or recipe.loss))
    check_same_parameters(graph, model)
    return graph


def check_same_parameters(graph: LayerGraph, model: nn.Module) -> None:
    """Refuse a graph that lacks parameters of the model it was made from."""
    held = {id(parameter) for parameter in graph.parameters()}
    lost = [name for name, parameter in model.named_parameters() if id(parameter) not in held]
    if lost:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise ModelError(
            f"no layer uses the parameter{'s' if len(lost) > 1 else ''} {', '.join(f'`{n}`' for n in lost[:3])}{more}",
            hint="use them in forward, or remove them: every parameter belongs to exactly one layer",
        )


def _built_in(name: str, *, seed: int, loss: str | None, options: dict[str, Any]) -> LayerGraph:
    entry = MODELS[name]
    known = inspect.signature(entry.build).parameters
    for option in options:
        if option not in known:
            raise ModelError(f"`{name}` has no option `{option}`", hint=did_you_mean(option, known))
    wanted = dict(options)
    needed = [option for option in known if known[option].default is inspect.Parameter.empty]
    if "schema" not in wanted:
        wanted = entry.defaults() | wanted
    elif lacking := [option for option in needed if option not in wanted]:
        raise ModelError(
            f"`{name}` needs the option `{lacking[0]}` where a schema is given",
            hint="take it from the same data, e.g. items=items_of(source.read(0, 10_000), first_slot=12)",
        )
    check_options(name, entry.build, options)
    schema: Schema = wanted.pop("schema")
    recipe = replace(RECIPES[name], loss=loss or RECIPES[name].loss)
    try:
        blocks = entry.build(schema, seed=seed, loss=recipe.loss, **wanted)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as problem:
        if isinstance(problem, DovetailError):
            raise
        given = ", ".join(f"{option} = {value!r}" for option, value in options.items() if option != "schema")
        raise ModelError(
            f"`{name}` could not be built with {given or 'these data'}: {problem}", hint="check the sizes given to it"
        ) from problem
    return LayerGraph(blocks, recipe=recipe)


def _made(name: str, *, seed: int, options: dict[str, Any]) -> nn.Module:
    """Return what a user's own function makes, called with the random state that belongs to the seed."""
    function = import_function(name, what="model", error=ModelError)
    known = inspect.signature(function).parameters
    if "seed" in known:
        options = {"seed": seed, **options}
    if "schema" not in known and not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
        options = {option: value for option, value in options.items() if option != "schema"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = function(**options)
        except Exception as problem:
            raise ModelError(
                f"model `{name}` could not be built: {type(problem).__name__}: {problem}",
                hint="check the options given to it, or call the function yourself to see where it fails",
            ) from problem
    return model  # type: ignore[no-any-return]


def _free_name(name: str, blocks: list[Block]) -> str:
    """Return `name`, with underscores until no block is called so."""
    while any(block.name == name for block in blocks):
        name += "_"
    return name
