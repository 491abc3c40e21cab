"""The examples are what they say."""

import runpy
from pathlib import Path

import pytest

from dovetail.spec import read_problem

EXAMPLES = Path(__file__).parents[2] / "examples"
MAKE_PROBLEMS = runpy.run_path(str(EXAMPLES / "make_problems.py"))


@pytest.mark.parametrize("name", list(MAKE_PROBLEMS["MODELS"]))
def test_an_example_problem_is_what_the_script_beside_it_makes(name: str) -> None:
    shapes, floor = MAKE_PROBLEMS["MODELS"][name]

    assert read_problem(EXAMPLES / "problems" / f"{name}.toml") == MAKE_PROBLEMS["problem_of"](shapes, floor)


@pytest.mark.parametrize(("name", "num_layers"), [("ctr-dnn", 16), ("matchnet", 16), ("2emb", 10), ("nce", 5)])
def test_the_examples_have_the_layers_of_the_models_they_are_shaped_like(name: str, num_layers: int) -> None:
    problem = read_problem(EXAMPLES / "problems" / f"{name}.toml")

    assert len(problem.layers) == num_layers
    assert {resource.name: resource.price_per_hour for resource in problem.resources} == {"cpu": 0.04, "v100": 2.42}
    assert problem.is_chain == (name in ("ctr-dnn", "nce"))
