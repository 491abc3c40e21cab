"""Initial values that depend on the seed and a parameter's name, and on nothing else.

A process that builds only the layers of its own stage gets the values it would have in the whole model.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.data.streams import stream_number


def initialise(model: nn.Module, seed: int) -> None:
    """Draw the parameters of every module anew by the module's own rule, from (seed, the module's name in the model).

    Modules with parameters of their own but without `reset_parameters` keep the values they were made with.
    """
    for name, module in model.named_modules():
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if callable(reset):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(stream_number(seed, f"parameters/{name}") >> 1)
                reset()
