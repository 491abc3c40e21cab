"""Plan files are read with the same care as problem files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail.errors import SpecError
from dovetail.spec import read_plan

EXAMPLE = (
    '{"method": "exact", "stages": [{"resource": "cpu", "first_layer": 0, "last_layer": 3, "units": 12}], '
    '"samples_per_s": 200123.4, "cost_per_hour": 12.3, "cost": 0.78, "lower_bound": 0.78, "optimal": true, '
    '"seconds": 0.004}'
)


def test_the_example_of_the_format_is_a_plan(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(EXAMPLE)

    plan = read_plan(path)

    assert plan.method == "exact"
    assert plan.stages[0].resource == "cpu"
    assert (plan.stages[0].first_layer, plan.stages[0].last_layer, plan.stages[0].units) == (0, 3, 12)
    assert plan.optimal
    assert plan.batch is None


@pytest.mark.parametrize(
    ("change", "says", "hint"),
    [
        (
            {"units": 0},
            "stages[0].units is 0, expected a whole number of at least 1",
            "how many units share the stage",
        ),
        (
            {"first_layer": 4},
            "stages[0].last_layer is 3, expected a whole number of at least 4",
            "itself included",
        ),
        (
            {"first_layer": -1},
            "stages[0].first_layer is -1, expected a whole number of at least 0",
            "from 0",
        ),
        (
            {"units": 1.5},
            "stages[0].units is 1.5, expected a whole number",
            "1 or more",
        ),
        (
            {"dense": "tree"},
            'stages[0].dense is "tree", expected one of ring, ps',
            "known are: `ring`, `ps`",
        ),
        (
            {"unit": 3},
            "stages[0].unit is not a known key",
            "did you mean `units`?",
        ),
    ],
)
def test_a_wrong_stage_is_told_with_file_key_value_and_hint(change, says, hint, tmp_path):
    content: dict[str, Any] = json.loads(EXAMPLE)
    content["stages"][0].update(change)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))

    with pytest.raises(SpecError) as caught:
        read_plan(path)

    assert str(caught.value) == f"{path}: {says}"
    assert hint in caught.value.hint
