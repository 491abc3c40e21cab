"""One entry: what it refuses, what it costs, and what becomes of it in a problem."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.catalogue import CatalogueEntry
from dovetail.errors import SpecError


def make_gpu(**changes: Any) -> CatalogueEntry:
    facts: dict[str, Any] = {
        "id": "here:two-a10",
        "kind": "gpu",
        "on_demand_usd_per_hour": 3.0,
        "spot_usd_per_hour": 1.0,
        "vcpus": 12,
        "memory_bytes": 64e9,
        "accelerator": "A10",
        "num_accelerators": 2,
        "accelerator_memory_bytes": 24e9,
        "fp32_flops_per_s": 62.4e12,
        "bf16_flops_per_s": 250e12,
        "memory_bytes_per_s": 1200e9,
    }
    return CatalogueEntry(**(facts | changes))


def make_cpu(**changes: Any) -> CatalogueEntry:
    facts: dict[str, Any] = {"id": "here:box", "kind": "cpu", "on_demand_usd_per_hour": 0.4, "memory_bytes": 32e9}
    return CatalogueEntry(**(facts | changes))


def test_cloud_and_instance_come_from_the_id():
    entry = make_gpu(id="here:rack:7")

    assert (entry.cloud, entry.instance) == ("here", "rack:7")


def test_the_price_is_on_demand_unless_spot_is_asked_for():
    assert make_gpu().price_per_hour() == 3.0
    assert make_gpu().price_per_hour(spot=True) == 1.0


def test_a_spot_price_that_is_not_there_is_an_error_with_a_way_out():
    with pytest.raises(SpecError, match='"here:box" has no spot price') as caught:
        make_cpu().price_per_hour(spot=True)

    assert "spot_usd_per_hour" in caught.value.hint


def test_a_gpu_becomes_a_resource_with_the_memory_of_all_its_accelerators():
    resource = make_gpu().to_resource(limit=4)

    assert resource.name == "two-a10"
    assert resource.kind == "gpu"
    assert resource.price_per_hour == 3.0
    assert resource.limit == 4
    assert resource.memory_bytes == 48e9
    assert resource.flops_per_s == 62.4e12
    assert resource.memory_bytes_per_s == 1200e9


def test_a_cpu_becomes_a_resource_with_the_memory_of_the_host():
    resource = make_cpu().to_resource(name="cpu")

    assert resource.name == "cpu"
    assert resource.memory_bytes == 32e9
    assert resource.flops_per_s is None


def test_a_resource_at_the_spot_price_costs_the_spot_price():
    assert make_gpu().to_resource(spot=True).price_per_hour == 1.0


def test_an_accelerator_of_unknown_memory_leaves_the_resources_memory_unknown():
    assert make_gpu(accelerator_memory_bytes=None).to_resource().memory_bytes is None


def test_each_precision_has_its_own_peak():
    entry = make_gpu()

    assert entry.flops_per_s() == 62.4e12
    assert entry.flops_per_s("bf16") == 250e12
    assert entry.flops_per_s("tf32") is None


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"id": "two-a10"}, "id"),
        ({"id": "here: two"}, "id"),
        ({"id": ":two"}, "id"),
        ({"cloud": "there"}, "cloud"),
        ({"instance": "one-a10"}, "instance"),
        ({"region": " "}, "region"),
        ({"on_demand_usd_per_hour": 0}, "on_demand_usd_per_hour"),
        ({"on_demand_usd_per_hour": float("nan")}, "on_demand_usd_per_hour"),
        ({"spot_usd_per_hour": -1}, "spot_usd_per_hour"),
        ({"vcpus": 0}, "vcpus"),
        ({"memory_bytes": float("inf")}, "memory_bytes"),
        ({"accelerator_memory_bytes": 0}, "accelerator_memory_bytes"),
        ({"fp32_flops_per_s": -1.0}, "fp32_flops_per_s"),
        ({"memory_bytes_per_s": 0}, "memory_bytes_per_s"),
        ({"network_bytes_per_s": 0}, "network_bytes_per_s"),
        ({"num_accelerators": -1}, "num_accelerators"),
        ({"num_accelerators": 0.5}, "num_accelerators"),
        ({"num_accelerators": 0}, "num_accelerators"),
        ({"kind": "cpu"}, "num_accelerators"),
        ({"kind": "other", "num_accelerators": 0}, "accelerator"),
        ({"accelerator": None}, "accelerator"),
        ({"prices_as_of": "August"}, "prices_as_of"),
        ({"prices_as_of": "2026-13"}, "prices_as_of"),
        ({"prices_source": ""}, "prices_source"),
    ],
)
def test_what_no_cloud_rents_out_is_refused_with_its_key_and_a_hint(changes: dict[str, Any], key: str):
    with pytest.raises(SpecError) as caught:
        make_gpu(**changes)

    assert caught.value.key == key
    assert caught.value.hint


def test_the_bus_follows_from_the_accelerator_unless_it_is_given():
    assert make_gpu().host_bus_bytes_per_s == pytest.approx(2 * 31.5e9, rel=0.01)  # two of PCI Express 4 x16
    assert make_gpu(accelerator="V100-PCIe").host_bus_bytes_per_s == pytest.approx(2 * 15.75e9, rel=0.01)
    assert make_gpu(accelerator="A100-80GB-PCIe").host_bus_bytes_per_s == pytest.approx(2 * 31.5e9, rel=0.01)
    assert make_gpu(bus_bytes_per_s=5e9).host_bus_bytes_per_s == 5e9
    assert make_gpu(accelerator="Something").host_bus_bytes_per_s is None
    assert make_cpu().host_bus_bytes_per_s is None
