"""The machines that a plan asks for."""

import msgspec
import pytest

from dovetail.catalogue import load_catalogue
from dovetail.errors import SpecError
from dovetail.manifests.nodes import name_of, parse_per_node
from dovetail.spec import LayerTime, ResourceType
from tests.makers import make_layer, make_problem
from tests.manifests.makers import make_plan, make_planned

TIME = LayerTime(compute_s=1.0, comm_s=0.0, compute_parallel=1.0, comm_parallel=0.0)


def test_units_of_one_type_are_added_up_and_packed_into_nodes() -> None:
    cpu, gpu = make_planned().groups

    # 20 + 3 cores on nodes of eight; a g5.xlarge has four virtual CPUs and one GPU.
    assert (cpu.type, cpu.nodes, cpu.units, cpu.cores, cpu.gpus) == ("cpu", 3, 8, 8, 0)
    assert (gpu.type, gpu.nodes, gpu.units, gpu.cores, gpu.gpus) == ("aws:g5.xlarge", 2, 1, 4, 1)
    assert (gpu.cloud, gpu.instance) == ("aws", "g5.xlarge")


def test_the_first_node_has_a_core_for_each_server_the_coordinator_and_the_launcher() -> None:
    planned = make_planned()

    assert planned.head_cores == 4
    assert planned.head_bytes == 6 << 30  # four of Python, and one for the rows of each server
    assert planned.num_nodes == 6


def test_the_price_is_that_of_whole_nodes_and_of_the_first_node() -> None:
    resources = (
        ResourceType(name="cpu", kind="cpu", price_per_hour=0.05),
        ResourceType(name="aws:g5.xlarge", kind="gpu", price_per_hour=0.4),
    )
    problem = make_problem(resources=resources, layers=[make_layer("one", on={each.name: TIME for each in resources})])

    prices = make_planned(problem=problem).prices

    # 3 nodes of 8 cores for 23 of them, two instances, and a first node of four cores at what cores cost here.
    assert prices.by_type == pytest.approx({"cpu": 24 * 0.05, "aws:g5.xlarge": 0.8})
    assert (prices.head, prices.head_like) == (pytest.approx(0.2), "cpu")
    assert prices.total == pytest.approx(2.2)
    assert "the plan's own price is 1, without the first node" in str(prices)


def test_a_plan_that_says_how_many_servers_has_as_many_on_the_first_node() -> None:
    plan = msgspec.structs.replace(make_plan(), servers=5)

    planned = make_planned(plan=plan)

    assert planned.head_cores == 2 + 5
    assert str(planned.prices).endswith("the plan's own price is 1, with its servers")


def test_in_a_cloud_the_first_node_is_priced_by_the_clouds_own_types() -> None:
    prices = make_planned(("aws:g5.xlarge", 0, 9, 2)).prices
    entry = load_catalogue()[str(prices.head_like)]

    # Four cores and six GiB, as a part of such a machine.
    share = max(4 / entry.vcpus, (6 << 30) / entry.memory_bytes)
    assert entry.cloud == "aws"
    assert entry.kind == "cpu"
    assert prices.head == pytest.approx(share * entry.on_demand_usd_per_hour)
    assert prices.total == pytest.approx(2 * load_catalogue()["aws:g5.xlarge"].on_demand_usd_per_hour + prices.head)


def test_a_price_that_nobody_says_is_not_made_up() -> None:
    prices = make_planned().prices  # of `cpu` nothing is known

    assert prices.by_type["cpu"] is None
    assert prices.total is None
    assert str(prices).startswith("not known in all: cpu at a price nobody says, ")


def test_without_more_said_a_node_has_one_unit() -> None:
    (group,) = make_planned(("v100", 0, 9, 3)).groups

    assert (group.nodes, group.units, group.cores, group.gpus) == (3, 1, 1, 1)


def test_types_whose_names_look_alike_get_different_ones() -> None:
    names = [group.name for group in make_planned(("a:b", 0, 0, 1), ("A.b", 1, 1, 1), ("head", 2, 2, 1)).groups]

    assert names[0] == "a-b"
    assert len({*names, "head"}) == 4


@pytest.mark.parametrize(
    ("text", "name"), [("My plan", "my-plan"), ("8x", "n-8x"), ("--", "n"), ("a" * 90, "a" * 40), ("é√", "n")]
)
def test_names_are_those_that_every_system_takes(text: str, name: str) -> None:
    assert name_of(text) == name


@pytest.mark.parametrize("word", ["cpu", "cpu=0", "=3", "cpu=x", "cpu=-1"])
def test_a_number_of_units_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(SpecError, match="does not say how many"):
        parse_per_node([word])


def test_units_of_a_type_that_the_plan_has_not_are_refused() -> None:
    with pytest.raises(SpecError, match="is no type of the plan"):
        make_planned(per_node={"cpus": 4})
