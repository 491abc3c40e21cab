"""A step captured as a CUDA graph: one launch instead of one for each of its operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Launch = Callable[[], Any]
Record = Callable[[Launch], Launch]
"""Takes in what launches a step; returns what does the same again, on the same memory."""


def recorder_for(device: torch.device) -> Record | None:
    """Return what captures steps on a device; None where nothing does."""
    return cuda_graph if device.type == "cuda" else None


def cuda_graph(launch: Launch) -> Launch:
    """Capture what is launched, which is not done yet; nothing else may use the device meanwhile."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = launch()

    def again() -> Any:
        graph.replay()
        return result

    return again
