"""Files of a user's own: they add, they replace, and where they are wrong the error says where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.catalogue import load_catalogue
from dovetail.errors import SpecError

OWN = """
prices_as_of = "2026-05-31"
prices_source = "our own books"

[[type]]
id = "lab:workstation"
kind = "gpu"
accelerator = "RTX4090"
num_accelerators = 1
accelerator_memory_bytes = 24e9
on_demand_usd_per_hour = 0.35

[[type]]
id = "aws:g5.xlarge"
kind = "gpu"
accelerator = "A10G"
num_accelerators = 1
on_demand_usd_per_hour = 0.7
prices_source = "our contract"
"""


def write(folder: Path, text: str, name: str = "own.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_an_own_file_adds_types_and_replaces_those_of_the_same_id(tmp_path: Path):
    packaged = load_catalogue()

    catalogue = load_catalogue([write(tmp_path, OWN)])

    assert len(catalogue) == len(packaged) + 1
    assert catalogue.find("lab:workstation").price_per_hour() == 0.35
    assert catalogue.find("aws:g5.xlarge").price_per_hour() == 0.7
    assert catalogue.find("aws:g5.xlarge").spot_usd_per_hour is None
    assert catalogue.find("aws:g5.48xlarge") == packaged.find("aws:g5.48xlarge")


def test_an_entry_takes_the_date_and_source_of_its_file_unless_it_gives_its_own(tmp_path: Path):
    catalogue = load_catalogue([write(tmp_path, OWN)])

    assert catalogue["lab:workstation"].prices_as_of == "2026-05-31"
    assert catalogue["lab:workstation"].prices_source == "our own books"
    assert catalogue["aws:g5.xlarge"].prices_as_of == "2026-05-31"
    assert catalogue["aws:g5.xlarge"].prices_source == "our contract"
    assert catalogue["aws:g5.48xlarge"].prices_as_of == "2026-08"


def test_json_does_as_well_and_the_later_file_wins(tmp_path: Path):
    box = {"id": "lab:box", "kind": "cpu", "on_demand_usd_per_hour": 0.1}
    first = write(tmp_path, json.dumps({"type": [box]}), "first.json")
    second = write(tmp_path, json.dumps({"type": [box | {"on_demand_usd_per_hour": 0.2}]}), "second.json")

    assert load_catalogue([first, second])["lab:box"].price_per_hour() == 0.2
    assert load_catalogue([second, first])["lab:box"].price_per_hour() == 0.1


@pytest.mark.parametrize(
    ("old", "new", "key", "hint"),
    [
        ("on_demand_usd_per_hour = 0.35", "on_demand_usd_per_hour = -1", "type[0].on_demand_usd_per_hour", "price"),
        ("on_demand_usd_per_hour = 0.35", "", "type[0].on_demand_usd_per_hour", "add it"),
        ("on_demand_usd_per_hour = 0.35", 'on_demand_usd_per_hour = "a"', "type[0].on_demand_usd_per_hour", "price"),
        ("on_demand_usd_per_hour = 0.35", "on_demand_usd_per_hours = 1", "type[0].on_demand_usd_per_hours", "did you"),
        ('id = "lab:workstation"', 'id = "workstation"', "type[0].id", "aws:g5.xlarge"),
        ('id = "lab:workstation"', 'id = "aws:g5.xlarge"', "type[1].id", "keep one"),
        ('kind = "gpu"', 'kind = "gpus"', "type[0].kind", "did you mean `gpu`?"),
        ("num_accelerators = 1", "num_accelerators = 0", "type[0].num_accelerators", "how many"),
        ('prices_as_of = "2026-05-31"', 'prices_as_of = "May"', "prices_as_of", "2026-08"),
        ("[[type]]", "[[typo]]", "typo", "did you mean `type`?"),
    ],
)
def test_a_broken_own_file_is_an_error_with_file_key_and_hint(tmp_path: Path, old: str, new: str, key: str, hint: str):
    path = write(tmp_path, OWN.replace(old, new) if old == "[[type]]" else OWN.replace(old, new, 1))

    with pytest.raises(SpecError) as caught:
        load_catalogue([path])

    assert caught.value.file == str(path)
    assert caught.value.key == key
    assert hint in caught.value.hint


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(SpecError, match="no such file") as caught:
        load_catalogue([tmp_path / "missing.toml"])

    assert caught.value.file == str(tmp_path / "missing.toml")
