"""Links between sites in a problem file: what they join, and what is refused with a word on the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.errors import SpecError
from dovetail.spec import read_problem, write_problem
from tests.makers import make_link, make_problem, make_resource, make_site_link

RESOURCES = (
    make_resource("cpu", 1.0, site="eu"),
    make_resource("gpu", 10.0, site="us"),
    make_resource("tpu", 5.0, site="us"),
)


def test_types_of_two_sites_take_the_link_between_the_sites_in_both_directions():
    link = make_site_link(price_per_gb=0.09)
    problem = make_problem(resources=RESOURCES, site_links=[link])

    assert problem.site_link("cpu", "gpu") == link
    assert problem.site_link("tpu", "cpu") == link
    assert problem.site_link("gpu", "tpu") is None


def test_each_direction_may_have_its_own_link():
    there, back = make_site_link(price_per_gb=0.09), make_site_link("us", "eu", price_per_gb=0.01)
    problem = make_problem(resources=RESOURCES, site_links=[there, back])

    assert problem.site_link("cpu", "gpu") == there
    assert problem.site_link("gpu", "cpu") == back


def test_inside_a_site_types_are_neighbours_as_they_were():
    site_links = [make_site_link()]

    assert make_problem(resources=RESOURCES, site_links=site_links).can_join("gpu", "tpu")
    linked = make_problem(resources=RESOURCES, site_links=site_links, links=[make_link("gpu", "cpu")])
    assert not linked.can_join("gpu", "tpu")  # there are links between types, and none joins these two
    assert linked.can_join("tpu", "cpu")  # their sites are joined


def test_a_problem_with_links_between_sites_is_read_as_it_was_written(tmp_path: Path):
    problem = make_problem(resources=RESOURCES, site_links=[make_site_link(latency_s=0.04, price_per_gb=0.09)])
    for name in ("problem.toml", "problem.json"):
        write_problem(problem, tmp_path / name)

        assert read_problem(tmp_path / name) == problem


def test_the_hash_of_a_problem_without_links_between_sites_is_the_one_that_older_plans_carry():
    assert make_problem().digest() == "ecaf3cd64f5975a6"  # worked out before there were any
    assert make_problem(resources=RESOURCES, site_links=[make_site_link()]).digest() != (
        make_problem(resources=RESOURCES).digest()
    )


@pytest.mark.parametrize(
    ("site_links", "message", "hint"),
    [
        ([make_site_link("eu", "uss")], 'site_link[0].to is "uss", which is no site', "did you mean `us`?"),
        ([make_site_link("eu", "eu")], "site_link[0] joins site `eu` with itself", "between two sites"),
        ([make_site_link(), make_site_link()], "site_link[1] gives the way from `eu` to `us` a second time", "one"),
    ],
)
def test_links_between_sites_that_cannot_be_are_refused(site_links, message, hint):
    with pytest.raises(SpecError) as refused:
        make_problem(resources=RESOURCES, site_links=site_links)

    assert message in str(refused.value)
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"price_per_gb": -0.01}, "price_per_gb is -0.01, expected a number of at least 0"),
        ({"bytes_per_s": 0}, "bytes_per_s is 0, expected a number above zero"),
        ({"latency_s": -1}, "latency_s is -1, expected a number of at least 0"),
        ({"target": " "}, 'to is " ", expected a name'),
    ],
)
def test_numbers_and_names_that_cannot_be_are_refused(keys, message):
    with pytest.raises(SpecError) as refused:
        make_site_link(**keys)

    assert message in str(refused.value)


def test_a_type_that_stands_nowhere_is_refused_where_sites_are_linked():
    with pytest.raises(SpecError, match=r"resource\[1\].site is missing.*type `gpu` stands at none") as refused:
        make_problem(resources=[RESOURCES[0], make_resource("gpu")], site_links=[make_site_link()])

    assert refused.value.hint == 'say where its units stand, e.g. site = "eu"'


def test_a_link_between_types_that_names_sites_says_how_those_are_linked():
    with pytest.raises(SpecError, match=r'link\[0\].from is "eu", which is no resource') as refused:
        make_problem(resources=RESOURCES, links=[make_link("eu", "us")])

    assert "[[site_link]]" in refused.value.hint
