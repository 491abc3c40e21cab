"""Machines and what runs beside the layers, in problem files."""

from pathlib import Path

import msgspec
import pytest

from dovetail.errors import SpecError
from dovetail.spec import Beside, Plan, Problem, SharedMachine, Whole, read_problem, write_problem
from dovetail.spec.files import struct_from
from tests.makers import make_layer, make_problem, make_resource

BESIDE = {
    "read_core_s": 0.004,
    "host_cores": {"gpu": 1},
    "micro_batch": 2048,
    "step_s": 0.002,
    "server_core_s": 0.02,
    "client_s": {"cpu": 0.02, "gpu": 0.006},
    "whole": [
        {"place": "local", "resource": "gpu", "units": 1, "cores": 3, "seconds_per_batch": 0.0016, "error": 0.05}
    ],
}
MACHINE = {"name": "here", "cores": 16, "memory_bytes": 1.2e11, "units": {"gpu": 1}}


def table(**keys: object) -> dict:
    problem = make_problem(
        layers=[make_layer("rows", kind="embedding"), make_layer("tower")],
        resources=[make_resource("cpu", kind="cpu"), make_resource("gpu", 10.0, kind="gpu")],
    )
    plain = msgspec.to_builtins(problem)
    del plain["machine"], plain["beside"]
    return {**plain, **keys}


def problem_from(**keys: object) -> Problem:
    return struct_from(table(**keys), Problem, file="problem.toml")


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_problem_with_machines_and_what_runs_beside_is_read_back_as_it_was_written(
    tmp_path: Path, suffix: str
) -> None:
    problem = problem_from(machine=[MACHINE], beside=BESIDE)
    write_problem(problem, tmp_path / f"problem.{suffix}")

    assert read_problem(tmp_path / f"problem.{suffix}") == problem
    assert problem.machines == (SharedMachine(name="here", cores=16, memory_bytes=1.2e11, units={"gpu": 1}),)
    assert problem.beside is not None
    assert problem.beside.wholes[0].seconds_per_batch == 0.0016


def test_a_problem_without_them_has_the_hash_that_it_had_and_writes_no_new_key(tmp_path: Path) -> None:
    bare = problem_from()
    write_problem(bare, tmp_path / "problem.toml")

    assert "machine" not in (tmp_path / "problem.toml").read_text()
    assert "beside" not in (tmp_path / "problem.toml").read_text()
    assert problem_from(machine=[MACHINE], beside=BESIDE).as_in_paper() == bare
    assert len({bare.digest(), problem_from(machine=[MACHINE]).digest(), problem_from(beside=BESIDE).digest()}) == 3


def test_a_plan_carries_place_servers_readers_parts_and_what_was_compared() -> None:
    keys = {
        "place": "servers", "servers": 2, "readers": 3, "cores": 9,
        "parts": [{"part": "read", "seconds_per_batch": 0.1, "cores": 3}],
        "compared": [{"layout": "one process on cpu", "samples_per_s": 1.0, "cost_per_hour": 2.0, "cost": 3.0}],
    }  # fmt: skip
    stage = {"resource": "cpu", "first_layer": 0, "last_layer": 1, "units": 4}
    plain = {"method": "exact", "stages": [stage], "samples_per_s": 1.0, "cost_per_hour": 1.0, "cost": 1.0}
    plain |= {"lower_bound": 1.0, "optimal": True, "seconds": 0.1}
    plan = struct_from({**plain, **keys}, Plan, file="plan.json")

    assert msgspec.json.decode(msgspec.json.encode(plan)) == {**plain, **keys}
    assert msgspec.json.decode(msgspec.json.encode(struct_from(plain, Plan, file="plan.json"))) == plain


WHOLE = BESIDE["whole"][0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"machine": [{**MACHINE, "cores": 0}]}, r"machine\[0\].cores is 0, expected a whole number of at least 1"),
        ({"machine": [{**MACHINE, "units": {"gpu": -1}}]}, r"machine\[0\].units.gpu is -1"),
        ({"machine": [{**MACHINE, "units": {"gqu": 1}}]}, r"machine\[0\].units.gqu names a resource"),
        ({"machine": [{**MACHINE, "units": {"cpu": 8}}]}, r"machine\[0\].units.cpu counts units of `cpu`"),
        ({"machine": [{**MACHINE, "memory_bytes": -4.0}]}, r"machine\[0\].memory_bytes is -4"),
        ({"machine": [MACHINE, MACHINE]}, r"machine\[1\].name is \"here\", the name of machine\[0\] too"),
        ({"beside": {}}, "beside.read_core_s is missing"),
        ({"beside": {**BESIDE, "read_core_s": -0.5}}, "beside.read_core_s is -0.5"),
        ({"beside": {**BESIDE, "step_s": -1.0}}, "beside.step_s is -1"),
        ({"beside": {**BESIDE, "server_core_s": -1.0}}, "beside.server_core_s is -1"),
        ({"beside": {**BESIDE, "micro_batch": 0}}, "beside.micro_batch is 0"),
        ({"beside": {**BESIDE, "host_cores": {"gpu": -2}}}, "beside.host_cores.gpu is -2"),
        ({"beside": {**BESIDE, "host_cores": {"cpu": 1}}}, "beside.host_cores.cpu is 1 for a type of kind cpu"),
        ({"beside": {**BESIDE, "client_s": {"gpu": -0.1}}}, "beside.client_s.gpu is -0.1"),
        ({"beside": {**BESIDE, "client_s": {"tpu": 0.1}}}, "beside.client_s.tpu names a resource"),
        ({"beside": {**BESIDE, "client_parallel": {"gpu": 1.5}}}, "beside.client_parallel.gpu is 1.5"),
        ({"beside": {"read_core_s": 0.1, "client_parallel": {"cpu": 0.5}}}, "client_parallel.cpu has no time to share"),
        ({"beside": {**BESIDE, "places": []}}, "beside.places is empty"),
        ({"beside": {**BESIDE, "places": ["disk"]}}, 'is "disk", expected one of'),
        ({"beside": {"read_core_s": 0.1, "server_core_s": 0.1}}, "beside.client_s is missing"),
        ({"beside": {"read_core_s": 0.1, "client_s": {"cpu": 0.1}}}, "beside.server_core_s is missing"),
        ({"beside": {**BESIDE, "whole": [WHOLE, WHOLE]}}, r"beside.whole\[1\] is measured a second time"),
        ({"beside": {**BESIDE, "whole": [{**WHOLE, "units": 2}]}}, r"whole\[0\].units is 2 for one process"),
        ({"beside": {**BESIDE, "whole": [{**WHOLE, "cores": 0}]}}, r"whole\[0\].cores is 0, and its units"),
        ({"beside": {**BESIDE, "whole": [{**WHOLE, "servers": 2}]}}, r"servers is 2 with place = \"local\""),
        ({"beside": {**BESIDE, "whole": [{**WHOLE, "seconds_per_batch": 0.0}]}}, "seconds_per_batch is 0"),
        ({"beside": {**BESIDE, "whole": [{**WHOLE, "place": "here"}]}}, 'is "here", expected one of local'),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_key_and_its_value(keys: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        problem_from(**keys)
    assert caught.value.hint


def test_values_made_in_python_are_checked_as_those_in_files_are() -> None:
    with pytest.raises(SpecError, match="read_core_s is -1"):
        Beside(read_core_s=-1.0)
    with pytest.raises(SpecError, match="units is 0"):
        Whole(place="local", resource="cpu", units=0, cores=1, seconds_per_batch=1.0)
