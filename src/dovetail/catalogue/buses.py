"""The bus between an accelerator and the memory of its host, one way, by what the makers publish.

A lane of PCI Express carries 8, 16 and 32 gigatransfers a second in generations 3, 4 and 5, of which 128 in 130 bits
are data; accelerators have 16 lanes.
"""

from __future__ import annotations

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


def bus_of(accelerator: str) -> float | None:
    """Return the bytes a second of one accelerator's bus, one way; None where it is not known."""
    for form in _FORMS:
        accelerator = accelerator.replace(form, "")
    return _RATES.get(accelerator)
