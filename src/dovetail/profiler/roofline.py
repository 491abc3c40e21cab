"""Estimates for machines that are not at hand, from their data sheets.

    seconds = overhead + max(operations / (peak * share), bytes / (bandwidth * share))

A training step is taken as three forward passes: one forward, two backward. `share` is what real layers reach of a data
sheet's peak. Estimates are marked as such and carry a wide error: plan with them, then measure.
"""

from __future__ import annotations

from dovetail.profiler.sizes import LayerSizes
from dovetail.spec import LayerTime, ResourceType

PEAK_SHARE = 0.6
"""Of the peak of matrix operations: layers of 1024 x 1024 reached 0.75 on an H200, smaller ones less."""
BANDWIDTH_SHARE = 0.6
ROW_BANDWIDTH_SHARE = 0.1
"""Embedding rows are read and written at random."""
OVERHEAD_S = 6e-5
"""Launching the kernels of a layer's forward, backward and update on a GPU: 40 to 120 us a layer on an H200."""
PASSES = 3
ESTIMATE_ERROR = 0.6
"""The shares were set on CTR-DNN on an H200, with an H100's data sheet: its sum is then off by 0.02, but single small
layers by a factor of up to four either way. Nothing else was checked, so the error is a guess for whole models."""


CPU_PEAK_SHARE = 0.5
CPU_OVERHEAD_S = 5e-5
"""Calling a layer forward and backward on a CPU: 48 us for an `nn.Linear` of almost no work, one thread of a Xeon."""
CPU_ESTIMATE_ERROR = 1.0
"""A guess, twice either way: threads, caches and neighbours decide as much as peaks do, and no CPU type was checked."""


def estimate_layer(
    sizes: LayerSizes, resource: ResourceType, *, is_embedding: bool, network_bytes_per_s: float
) -> LayerTime | None:
    """Return the time of a layer on one unit of a type, or None where the type's data sheet has no peaks."""
    if resource.flops_per_s is None or resource.memory_bytes_per_s is None:
        return None
    bandwidth = resource.memory_bytes_per_s * (ROW_BANDWIDTH_SHARE if is_embedding else BANDWIDTH_SHARE)
    moved_bytes = PASSES * (sizes.input_bytes + sizes.output_bytes)
    moved_bytes += 2 * sizes.traffic_bytes if is_embedding else PASSES * (sizes.weight_bytes + sizes.optimizer_bytes)
    is_cpu = resource.kind == "cpu"
    share, overhead_s = (CPU_PEAK_SHARE, CPU_OVERHEAD_S) if is_cpu else (PEAK_SHARE, OVERHEAD_S)
    work_s = max(PASSES * sizes.forward_flops / (resource.flops_per_s * share), moved_bytes / bandwidth)
    return LayerTime(
        compute_s=overhead_s + work_s,
        comm_s=sizes.traffic_bytes / network_bytes_per_s,
        compute_parallel=work_s / (overhead_s + work_s),
        comm_parallel=1.0 if is_embedding else 0.0,
        source="estimated",
        error=CPU_ESTIMATE_ERROR if is_cpu else ESTIMATE_ERROR,
    )
