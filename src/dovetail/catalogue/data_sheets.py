"""Peaks of processors and buses, worked out from what their makers publish."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

_LANES, _DATA = 16, 128 / 130 / 8
GEN3, GEN4, GEN5 = (_LANES * gigatransfers * 1e9 * _DATA for gigatransfers in (8, 16, 32))
NVLINK_C2C = 450e9
"""Between the two chips of a GH200."""
_BY_NAME = {
    GEN3: ("M60", "P4", "P100", "RTX6000", "T4", "V100"),
    GEN4: ("A10", "A10G", "A100", "A6000", "L4", "L40S"),
    GEN5: ("B200", "B300", "H100", "H200", "RTX-PRO-4500", "RTX-PRO-6000"),
    NVLINK_C2C: ("GH200",),
}
_RATES = {name: rate for rate, names in _BY_NAME.items() for name in names}
_FORMS = ("-PCIe", "-NVL", "-80GB", "-32GB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One processor.

        fp32 peak of a core = clock * fp32 operations a cycle;   peak of a unit = that * its cores
        bandwidth of a unit = bandwidth of the socket * its virtual CPUs / those of the socket

    The clock is the base clock: most code runs above it, code of many 512-bit operations about there. An operation is
    half of a fused multiply-add. A cloud says which processor a family has, not how it places neighbours, so the share
    of the bandwidth is the fair one.
    """

    name: str
    clock_hz: float
    fp32_per_cycle: int
    """Of one core: vector units * lanes * 2."""
    socket_vcpus: int
    socket_bytes_per_s: float
    """Memory channels * transfers a second * 8 bytes."""
    threads_per_core: int = 2
    """Virtual CPUs of one core."""

    def cores(self, vcpus: float) -> float:
        """Return how many cores so many virtual CPUs are."""
        return vcpus / self.threads_per_core

    def flops_per_s(self, vcpus: float) -> float:
        """Return the fp32 peak of so many virtual CPUs."""
        return self.cores(vcpus) * self.clock_hz * self.fp32_per_cycle

    def memory_bytes_per_s(self, vcpus: float) -> float:
        """Return the bandwidth that is the share of so many virtual CPUs."""
        return self.socket_bytes_per_s * vcpus / self.socket_vcpus


GRAVITON3 = Chip(
    name="Graviton3",
    clock_hz=2.6e9,
    fp32_per_cycle=32,
    socket_vcpus=64,
    socket_bytes_per_s=8 * 4.8e9 * 8,
    threads_per_core=1,
)
GENOA = Chip(
    name="EPYC 9R14",
    clock_hz=2.6e9,
    fp32_per_cycle=32,
    socket_vcpus=96,
    socket_bytes_per_s=12 * 4.8e9 * 8,
    threads_per_core=1,
)
ICE_LAKE = Chip(name="Xeon 8375C", clock_hz=2.9e9, fp32_per_cycle=64, socket_vcpus=64, socket_bytes_per_s=8 * 3.2e9 * 8)
SAPPHIRE_RAPIDS = Chip(
    name="Xeon 8488C", clock_hz=2.4e9, fp32_per_cycle=64, socket_vcpus=96, socket_bytes_per_s=8 * 4.8e9 * 8
)
SAPPHIRE_RAPIDS_GCP = Chip(
    name="Xeon 8481C", clock_hz=1.9e9, fp32_per_cycle=64, socket_vcpus=88, socket_bytes_per_s=8 * 4.8e9 * 8
)
ICE_LAKE_AZURE = Chip(
    name="Xeon 8370C", clock_hz=2.8e9, fp32_per_cycle=64, socket_vcpus=64, socket_bytes_per_s=8 * 3.2e9 * 8
)
CASCADE_LAKE = Chip(
    name="Xeon of the second generation",
    clock_hz=2.6e9,
    fp32_per_cycle=64,
    socket_vcpus=52,
    socket_bytes_per_s=6 * 2.933e9 * 8,
)

CHIPS = {
    "aws:c7g.*": GRAVITON3,
    "aws:c7a.*": GENOA,
    "aws:c6i.*": ICE_LAKE,
    "aws:[cmr]7i.*": SAPPHIRE_RAPIDS,
    "azure:Standard_D*s_v5": ICE_LAKE_AZURE,
    "azure:Standard_F*s_v2": CASCADE_LAKE,
    "gcp:n2-*": CASCADE_LAKE,
    "gcp:c3-*": SAPPHIRE_RAPIDS_GCP,
}
"""The processor of each family of CPU types; a family that may have one of several is taken for the slowest."""


def chip_of(type_id: str) -> Chip | None:
    """Return the processor of a type, where it is known."""
    return next((chip for pattern, chip in CHIPS.items() if fnmatchcase(type_id, pattern)), None)


def bus_of(accelerator: str) -> float | None:
    """Return the bytes a second of one accelerator's bus, one way; None where it is not known.

    A lane of PCI Express carries 8, 16 and 32 gigatransfers a second in generations 3, 4 and 5, of which 128 in 130
    bits are data; accelerators have 16 lanes.
    """
    for form in _FORMS:
        accelerator = accelerator.replace(form, "")
    return _RATES.get(accelerator)
