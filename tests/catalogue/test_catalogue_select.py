"""Finding by id, filtering and sorting."""

from __future__ import annotations

import pytest

from dovetail.catalogue import Catalogue, CatalogueEntry
from dovetail.errors import SpecError

SMALL_CPU = CatalogueEntry(
    id="east:small", kind="cpu", on_demand_usd_per_hour=0.1, spot_usd_per_hour=0.05, vcpus=2, memory_bytes=8e9
)
LARGE_CPU = CatalogueEntry(
    id="west:large", kind="cpu", on_demand_usd_per_hour=4.0, spot_usd_per_hour=0.5, vcpus=96, memory_bytes=400e9
)
A100 = CatalogueEntry(
    id="east:a100",
    kind="gpu",
    on_demand_usd_per_hour=2.0,
    memory_bytes=900e9,
    accelerator="A100",
    num_accelerators=1,
    accelerator_memory_bytes=40e9,
    fp32_flops_per_s=19.5e12,
)
A100_80GB = CatalogueEntry(
    id="west:two-a100",
    kind="gpu",
    on_demand_usd_per_hour=6.0,
    spot_usd_per_hour=3.0,
    accelerator="A100-80GB",
    num_accelerators=2,
    accelerator_memory_bytes=80e9,
    fp32_flops_per_s=39e12,
)
A10 = CatalogueEntry(
    id="west:a10", kind="gpu", on_demand_usd_per_hour=1.0, accelerator="A10", num_accelerators=1, fp32_flops_per_s=31e12
)
CATALOGUE = Catalogue([LARGE_CPU, A100_80GB, SMALL_CPU, A100, A10])


def test_a_catalogue_is_a_mapping_from_ids_to_entries():
    assert len(CATALOGUE) == 5
    assert CATALOGUE["east:a100"] is A100
    assert "east:b200" not in CATALOGUE
    assert CATALOGUE.clouds == ["east", "west"]
    assert CATALOGUE.accelerators == ["A10", "A100", "A100-80GB"]


def test_find_returns_the_entry_of_an_id():
    assert CATALOGUE.find("west:a10") is A10


def test_find_names_the_nearest_id_where_there_is_none():
    with pytest.raises(SpecError, match='"west:a1O" is not in the catalogue') as caught:
        CATALOGUE.find("west:a1O")

    assert caught.value.hint == "did you mean `west:a10`?"


def test_find_names_the_listing_where_nothing_is_near():
    with pytest.raises(SpecError) as caught:
        CATALOGUE.find("?")

    assert "dovetail catalogue" in caught.value.hint


def test_without_filters_everything_comes_the_cheapest_first():
    assert CATALOGUE.select() == [SMALL_CPU, A10, A100, LARGE_CPU, A100_80GB]


def test_cloud_and_kind_narrow_the_choice():
    assert CATALOGUE.select(cloud="west") == [A10, LARGE_CPU, A100_80GB]
    assert CATALOGUE.select(kind="cpu") == [SMALL_CPU, LARGE_CPU]
    assert CATALOGUE.select(cloud="east", kind="gpu") == [A100]


def test_an_accelerator_is_found_in_any_case_with_its_variants_and_no_others():
    assert CATALOGUE.select(accelerator="a100") == [A100, A100_80GB]
    assert CATALOGUE.select(accelerator="A100-80GB") == [A100_80GB]
    assert CATALOGUE.select(accelerator="A10") == [A10]


def test_a_price_limit_keeps_what_costs_at_most_that():
    assert CATALOGUE.select(max_usd_per_hour=1.0) == [SMALL_CPU, A10]


def test_spot_filters_and_sorts_by_the_spot_price_and_leaves_out_types_without_one():
    assert CATALOGUE.select(spot=True) == [SMALL_CPU, LARGE_CPU, A100_80GB]
    assert CATALOGUE.select(spot=True, max_usd_per_hour=0.5) == [SMALL_CPU, LARGE_CPU]


def test_a_memory_floor_looks_at_accelerators_where_there_are_any_and_drops_the_unknown():
    assert CATALOGUE.select(min_memory_bytes=41e9) == [LARGE_CPU, A100_80GB]
    assert CATALOGUE.select(min_memory_bytes=1) == [SMALL_CPU, A100, LARGE_CPU, A100_80GB]


def test_memory_and_flops_sort_the_largest_first_and_the_unknown_last():
    assert CATALOGUE.select(sort_by="memory") == [LARGE_CPU, A100_80GB, A100, SMALL_CPU, A10]
    assert CATALOGUE.select(sort_by="flops") == [A100_80GB, A10, A100, SMALL_CPU, LARGE_CPU]


def test_name_sorts_by_id():
    assert CATALOGUE.select(sort_by="name") == [A100, SMALL_CPU, A10, LARGE_CPU, A100_80GB]


def test_nothing_that_fits_is_an_empty_list():
    assert CATALOGUE.select(max_usd_per_hour=0.01) == []


@pytest.mark.parametrize(
    ("filters", "key", "hint"),
    [
        ({"cloud": "weat"}, "cloud", "did you mean `west`?"),
        ({"kind": "gpus"}, "kind", "did you mean `gpu`?"),
        ({"accelerator": "B200"}, "accelerator", "known are: `A10`, `A100`, `A100-80GB`"),
        ({"sort_by": "prize"}, "sort", "did you mean `price`?"),
    ],
)
def test_a_word_that_nothing_can_match_is_an_error(filters: dict[str, str], key: str, hint: str):
    with pytest.raises(SpecError) as caught:
        CATALOGUE.select(**filters)  # type: ignore[arg-type]

    assert caught.value.key == key
    assert caught.value.hint == hint
