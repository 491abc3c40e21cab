"""Estimates from data sheets, by hand."""

import pytest

from dovetail.errors import DovetailError
from dovetail.orchestrate.profiling import types_elsewhere
from dovetail.profiler.profile import CPU_OVERHEAD_S, CPU_PEAK_SHARE, estimate_layer
from dovetail.profiler.sizes import LayerSizes


def sizes_of(**how):
    """Return a layer of a million operations a sample forward, unless told otherwise."""
    plain = dict.fromkeys(LayerSizes.__dataclass_fields__, 0)
    return LayerSizes(**(plain | how))


def test_a_cpu_type_of_the_catalogue_is_estimated_with_an_error():
    (resource,) = types_elsewhere(["aws:c7i.4xlarge"])

    found = estimate_layer(sizes_of(forward_flops=1e12), resource, is_embedding=False, network_bytes_per_s=1e9)

    # Three passes of 1e12 operations at half of 8 cores * 2.4 GHz * 64.
    assert found.compute_s == pytest.approx(CPU_OVERHEAD_S + 3e12 / (8 * 2.4e9 * 64 * CPU_PEAK_SHARE))
    assert (found.source, found.error) == ("estimated", 1.0)


def test_a_type_without_peaks_is_refused():
    with pytest.raises(DovetailError, match="has no peaks in the catalogue"):
        types_elsewhere(["lambda:cpu_4x_general"])
