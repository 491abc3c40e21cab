"""What a plan over two sites takes and costs, worked out by hand."""

from __future__ import annotations

import pytest

from dovetail.cost import evaluate, stage_times
from dovetail.spec import Problem
from tests.makers import make_layer, make_link, make_problem, make_resource, make_site_link, make_stages


def two_sites(**keys: object) -> Problem:
    """Return three layers of a second each with 1e9 and 5e8 bytes between them, a cpu in `eu` and a gpu in `us`."""
    return make_problem(
        layers=[make_layer("a", output_bytes=1e9), make_layer("b", output_bytes=5e8), make_layer("c")],
        resources=[make_resource("cpu", 1.0, site="eu"), make_resource("gpu", 10.0, site="us")],
        **keys,
    )


def test_a_cut_between_sites_takes_the_payload_both_ways_and_is_not_shared_by_units():
    problem = two_sites(site_links=[make_site_link(bytes_per_s=1e8, latency_s=0.5)])
    stages = make_stages(("cpu", 0, 0, 4), ("gpu", 1, 2, 2))

    # 2 * 1e9 / 1e8 + 2 * 0.5 = 21 s for either stage, however many units it has.
    assert [stage_times(problem, stages, position).cut_s for position in (0, 1)] == pytest.approx([21.0, 21.0])


def test_the_links_of_the_types_and_of_their_sites_are_both_paid():
    problem = two_sites(links=[make_link(bytes_per_s=1e9)], site_links=[make_site_link(bytes_per_s=1e8)])
    stages = make_stages(("cpu", 0, 0, 4), ("gpu", 1, 2, 2))

    # 2 * 1e9 / 1e9 / k of the units' own links, and 20 s of the one between the sites.
    assert [stage_times(problem, stages, position).cut_s for position in (0, 1)] == pytest.approx([20.5, 21.0])


def test_egress_is_paid_for_every_byte_of_every_batch_by_the_way_it_leaves():
    links = [make_site_link(price_per_gb=0.09), make_site_link("us", "eu", price_per_gb=0.02)]
    problem = two_sites(site_links=links, samples=1000, epochs=2, batch=10)
    priced = evaluate(problem, make_stages(("cpu", 0, 0, 1), ("gpu", 1, 1, 1), ("cpu", 2, 2, 1)))

    # 200 batches; over the first cut 1 GB at 0.09 and back at 0.02, over the second 0.5 GB at 0.02 and back at 0.09.
    assert priced.egress_cost == pytest.approx(200 * (0.11 + 0.055))
    assert priced.egress_bytes == pytest.approx(200 * 3e9)
    assert priced.cost == pytest.approx(priced.hours * 12.0 + 33.0)


def test_a_plan_at_one_site_pays_no_egress():
    priced = evaluate(two_sites(site_links=[make_site_link(price_per_gb=9.0)]), make_stages(("cpu", 0, 2, 3)))

    assert (priced.egress_cost, priced.egress_bytes) == (0.0, 0.0)
    assert priced.cost == priced.hours * 3.0


def test_sites_without_links_between_them_change_nothing():
    stages = make_stages(("cpu", 0, 0, 4), ("gpu", 1, 2, 2))
    without = make_problem(layers=two_sites().layers)

    assert evaluate(two_sites(), stages) == evaluate(without, stages)
