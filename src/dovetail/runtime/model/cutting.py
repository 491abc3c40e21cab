"""What a model may not have where it is cut into stages."""

from __future__ import annotations

import torch

from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.model.parameters import dense_parameters, norms_of
from dovetail.spec.run import Run


def check_cut(graph: LayerGraph, run: Run) -> None:
    """Refuse batch norms, lower precision, and layers in two stages that share a parameter."""
    if norms_of(graph):
        raise TrainingError(
            "the model normalises by batches, and its stages would each see another part of one",
            hint="train it in one stage, or use layer norms",
        )
    for name, parameter in dense_parameters(graph):
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise TrainingError(
                f"parameter `{name}` is {kind}, and the model is cut into stages",
                hint='train it in one stage, or keep float32 and set precision = "bfloat16" of workers',
            )
    if any(worker.precision == "float16" for worker in run.workers):
        raise TrainingError(
            "a worker computes in float16, and the model is cut into stages",
            hint='set its precision = "bfloat16": losses are scaled for float16 in one stage only',
        )
    if run.training.compile:
        raise TrainingError(
            "training.compile is true, and the model is cut into stages",
            hint="leave it away, or train the model in one stage",
        )
    stage_of = [
        number for number, stage in enumerate(run.stages) for _ in range(stage.first_layer, stage.last_layer + 1)
    ]
    for name, one, other in graph.ties():
        if stage_of[graph.position(one)] != stage_of[graph.position(other)]:
            raise TrainingError(
                f"layers `{one}` and `{other}` share the parameter `{name}`, and lie in stages "
                f"{stage_of[graph.position(one)]} and {stage_of[graph.position(other)]}",
                hint="cut the model so that one stage holds both",
            )
