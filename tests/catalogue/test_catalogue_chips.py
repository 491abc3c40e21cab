"""Peaks of CPU types, by arithmetic from the makers' figures."""

import pytest

from dovetail.catalogue import load_catalogue


@pytest.mark.parametrize(
    ("name", "cores", "flops_per_s", "bytes_per_s"),
    [
        # 16 of 96 virtual CPUs of a Xeon with 48 cores at 2.4 GHz, two AVX-512 units: 2 * 16 * 2 operations a cycle.
        ("aws:c7i.4xlarge", 8, 8 * 2.4e9 * 64, 307.2e9 / 6),
        # One core a virtual CPU: two units of 256 bits at 2.6 GHz.
        ("aws:c7g.16xlarge", 64, 64 * 2.6e9 * 32, 307.2e9),
        ("aws:c7a.48xlarge", 192, 192 * 2.6e9 * 32, 2 * 460.8e9),
        ("azure:Standard_D64s_v5", 32, 32 * 2.8e9 * 64, 204.8e9),
    ],
)
def test_a_cpu_type_has_cores_and_peaks(name, cores, flops_per_s, bytes_per_s):
    entry = load_catalogue().find(name)
    resource = entry.to_resource()

    assert entry.cores == cores
    assert resource.flops_per_s == pytest.approx(flops_per_s)
    assert resource.memory_bytes_per_s == pytest.approx(bytes_per_s)


def test_every_cpu_type_whose_processor_is_known_can_be_estimated():
    unknown = [
        entry.id
        for entry in load_catalogue().values()
        if entry.kind == "cpu" and (entry.flops_per_s() is None or entry.bandwidth_bytes_per_s is None)
    ]

    assert unknown == ["lambda:cpu_4x_general"]  # its cloud does not say what it is
