"""A [[resource]] table that names a type of the catalogue."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dovetail.catalogue import Catalogue, CatalogueEntry, resolve_resource
from dovetail.errors import SpecError
from dovetail.spec import ResourceType

GPU = CatalogueEntry(
    id="east:two-l4",
    kind="gpu",
    on_demand_usd_per_hour=1.5,
    spot_usd_per_hour=0.5,
    memory_bytes=128e9,
    accelerator="L4",
    num_accelerators=2,
    accelerator_memory_bytes=24e9,
    fp32_flops_per_s=60.6e12,
    memory_bytes_per_s=600e9,
)
CPU = CatalogueEntry(id="east:box", kind="cpu", on_demand_usd_per_hour=0.2, memory_bytes=16e9)
CATALOGUE = Catalogue([GPU, CPU])


def test_a_type_is_replaced_by_what_the_catalogue_knows():
    assert resolve_resource({"type": "east:two-l4"}, CATALOGUE, spot=False) == {
        "name": "two-l4",
        "kind": "gpu",
        "price_per_hour": 1.5,
        "memory_bytes": 48e9,
        "flops_per_s": 60.6e12,
        "memory_bytes_per_s": 600e9,
    }


def test_what_the_catalogue_does_not_know_stays_out():
    assert resolve_resource({"type": "east:box"}, CATALOGUE, spot=False) == {
        "name": "box",
        "kind": "cpu",
        "price_per_hour": 0.2,
        "memory_bytes": 16e9,
    }


def test_what_the_table_gives_itself_stays():
    table = {"type": "east:two-l4", "name": "gpu", "price_per_hour": 9.0, "memory_bytes": 1e9, "limit": 3, "site": "x"}

    resolved = resolve_resource(table, CATALOGUE, spot=False)

    assert resolved == {
        "name": "gpu",
        "kind": "gpu",
        "price_per_hour": 9.0,
        "memory_bytes": 1e9,
        "flops_per_s": 60.6e12,
        "memory_bytes_per_s": 600e9,
        "limit": 3,
        "site": "x",
    }


def test_the_table_handed_in_is_left_as_it_was():
    table = {"type": "east:box"}

    resolve_resource(table, CATALOGUE, spot=False)

    assert table == {"type": "east:box"}


def test_a_table_without_a_type_comes_back_as_it_is():
    table = {"name": "cpu", "price_per_hour": 0.04, "unknown": 1}

    assert resolve_resource(table, CATALOGUE, spot=True) == table


def test_the_result_is_a_resource_that_a_problem_accepts():
    table = resolve_resource({"type": "east:two-l4", "limit": 8}, CATALOGUE, spot=False)

    assert msgspec.convert(table, ResourceType) == GPU.to_resource(limit=8)


def test_spot_takes_the_spot_price():
    assert resolve_resource({"type": "east:two-l4"}, CATALOGUE, spot=True)["price_per_hour"] == 0.5


def test_spot_without_a_spot_price_is_an_error_at_type():
    with pytest.raises(SpecError, match='type "east:box" has no spot price') as caught:
        resolve_resource({"type": "east:box"}, CATALOGUE, spot=True)

    assert caught.value.key == "type"


def test_spot_without_a_spot_price_is_no_error_where_the_table_gives_its_own_price():
    table = {"type": "east:box", "price_per_hour": 0.03}

    assert resolve_resource(table, CATALOGUE, spot=True)["price_per_hour"] == 0.03


def test_an_unknown_type_is_an_error_that_names_the_nearest():
    with pytest.raises(SpecError, match='type "east:two-14" is not in the catalogue') as caught:
        resolve_resource({"type": "east:two-14"}, CATALOGUE, spot=False)

    assert caught.value.key == "type"
    assert caught.value.hint == "did you mean `east:two-l4`?"


@pytest.mark.parametrize("value", [5, True, None, ["east:box"], {"id": "east:box"}])
def test_a_type_that_is_no_text_is_an_error(value: Any):
    with pytest.raises(SpecError, match="expected text in quotes") as caught:
        resolve_resource({"type": value}, CATALOGUE, spot=False)

    assert caught.value.key == "type"
    assert "aws:g5.xlarge" in caught.value.hint
