"""The types that come with Dovetail: enough of them, valid, and at the prices of the price list."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from dovetail.catalogue import Catalogue, CatalogueEntry, load_catalogue

KINDS = {"cpu", "gpu", "other"}


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


@pytest.fixture(scope="module")
def price_rows() -> list[dict[str, str]]:
    data = os.environ.get("DOVETAIL_DATA")
    if not data:
        pytest.skip("DOVETAIL_DATA is not set")
    with (Path(data) / "prices" / "cloud_prices.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def row_of(entry: CatalogueEntry, rows: list[dict[str, str]]) -> dict[str, str]:
    """Return an entry's row; accelerators priced alone are called `h100-x8` here and H100, 8 there."""
    if entry.host_included:
        found = [row for row in rows if (row["cloud"], row["instance"]) == (entry.cloud, entry.instance)]
    else:
        name, _, count = entry.instance.rpartition("-x")
        found = [
            row
            for row in rows
            if (row["cloud"], row["instance"], row["accelerator"].lower()) == (entry.cloud, "", name)
            and float(row["accelerators"]) == float(count)
        ]
    assert len(found) == 1, entry.id
    return found[0]


def test_there_are_more_than_60_types_of_4_clouds_and_every_kind(catalogue: Catalogue):
    assert len(catalogue) >= 60
    assert catalogue.clouds == ["aws", "azure", "gcp", "lambda"]
    assert {entry.kind for entry in catalogue.values()} == KINDS
    for cloud in catalogue.clouds:
        assert catalogue.select(cloud=cloud, kind="cpu"), cloud
        assert catalogue.select(cloud=cloud, kind="gpu"), cloud


def test_every_entry_becomes_a_resource_that_a_problem_accepts(catalogue: Catalogue):
    for entry in catalogue.values():
        resource = entry.to_resource()
        assert resource.name == entry.instance
        assert resource.kind == entry.kind
        assert resource.memory_bytes is not None


def test_every_entry_says_where_and_when_its_price_held(catalogue: Catalogue):
    for entry in catalogue.values():
        assert entry.region, entry.id
        assert entry.prices_as_of == "2026-08", entry.id
        assert entry.prices_source == "list prices from a public price catalogue", entry.id


def test_every_unit_with_a_host_says_its_vcpus_and_memory(catalogue: Catalogue):
    for entry in catalogue.values():
        if entry.host_included:
            assert entry.vcpus is not None, entry.id
            assert entry.memory_bytes is not None, entry.id
        else:
            assert entry.cloud == "gcp"


def test_units_with_the_same_accelerator_have_the_same_numbers_for_each(catalogue: Catalogue):
    seen: dict[str, tuple[float | None, ...]] = {}
    for entry in catalogue.select(sort_by="name"):
        if entry.accelerator is None:
            continue
        sums = (
            entry.fp32_flops_per_s,
            entry.tf32_flops_per_s,
            entry.bf16_flops_per_s,
            entry.memory_bytes_per_s,
        )
        each = (entry.accelerator_memory_bytes, *(total and total / entry.num_accelerators for total in sums))
        assert each == pytest.approx(seen.setdefault(entry.accelerator, each)), entry.id


def test_peaks_grow_as_precision_falls(catalogue: Catalogue):
    for entry in catalogue.values():
        known = [peak for name in ("fp32", "tf32", "bf16") if (peak := entry.flops_per_s(name)) is not None]
        assert known == sorted(known), entry.id


@pytest.mark.parametrize(
    ("entry_id", "memory_bytes", "fp32_flops_per_s", "memory_bytes_per_s"),
    [  # from the makers' data sheets: 8 V100 SXM2 of 32 GB, one T4, 8 A100 of 40 GB, one H100 PCIe
        ("aws:p3dn.24xlarge", 256e9, 125.6e12, 7200e9),
        ("aws:g4dn.xlarge", 16e9, 8.1e12, 320e9),
        ("aws:p4d.24xlarge", 320e9, 156e12, 12440e9),
        ("lambda:gpu_1x_h100_pcie", 80e9, 51e12, 2000e9),
    ],
)
def test_a_unit_adds_up_its_accelerators(
    catalogue: Catalogue, entry_id: str, memory_bytes: float, fp32_flops_per_s: float, memory_bytes_per_s: float
):
    resource = catalogue.find(entry_id).to_resource()

    assert resource.memory_bytes == pytest.approx(memory_bytes)
    assert resource.flops_per_s == pytest.approx(fp32_flops_per_s)
    assert resource.memory_bytes_per_s == pytest.approx(memory_bytes_per_s)


def test_every_price_is_that_of_the_price_list(catalogue: Catalogue, price_rows: list[dict[str, str]]):
    for entry in catalogue.values():
        row = row_of(entry, price_rows)
        assert entry.region == row["region"], entry.id
        assert entry.on_demand_usd_per_hour == float(row["usd_per_hour"]), entry.id
        spot = row["spot_usd_per_hour"]
        assert entry.spot_usd_per_hour == (float(spot) if spot else None), entry.id


def test_every_shape_is_that_of_the_price_list(catalogue: Catalogue, price_rows: list[dict[str, str]]):
    for entry in catalogue.values():
        row = row_of(entry, price_rows)
        assert entry.vcpus == (float(row["vcpus"]) if row["vcpus"] else None), entry.id
        assert entry.memory_bytes == (float(row["memory_gib"]) * 2**30 if row["memory_gib"] else None), entry.id
        if entry.id != "azure:Standard_ND96isr_H100_v5":  # the price list says 12; the cloud's own pages say 8
            assert entry.num_accelerators == float(row["accelerators"]), entry.id


def test_every_accelerator_of_the_price_list_that_is_rented_whole_is_there(
    catalogue: Catalogue, price_rows: list[dict[str, str]]
):
    listed = {
        (row["cloud"], row["accelerator"])
        for row in price_rows
        if row["accelerator"] and float(row["accelerators"]) >= 1
    }

    present = {
        (entry.cloud, row_of(entry, price_rows)["accelerator"]) for entry in catalogue.values() if entry.accelerator
    }

    assert present == listed


def test_no_spot_price_is_above_the_on_demand_price(catalogue: Catalogue):
    # A few rows of the price list are so, and none of them was taken over; it rounds spot prices to 4 digits.
    for entry in catalogue.select(spot=True):
        assert entry.price_per_hour(spot=True) <= entry.price_per_hour() + 0.5e-4, entry.id
