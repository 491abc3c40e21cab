"""The RL planner learns, repeats, keeps its policy, starts warm, and refines on measured runs."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from dovetail.errors import DovetailError
from dovetail.planner.baselines.heterps import KINDS, NUM_POSITIONS, PolicyNetwork, Shape, layer_features
from dovetail.planner.baselines.search import SearchRound
from dovetail.planner.demands import Demands
from dovetail.planner.methods import Options, plan_with
from dovetail.spec import Layer, LayerTime, Plan, Problem, ResourceType, Stage, Training
from dovetail.spec.synthetic import synthetic_problem

PROBLEM = synthetic_problem(num_layers=10, num_types=5, seed=4)


def make_plan(method: str, problem: Problem = PROBLEM, **options: object) -> Plan:
    return plan_with(method, problem, Demands(), clock=time.perf_counter, options=Options(**options))


@pytest.mark.parametrize("method", ["rl", "rl-rnn", "rl-joint"])
def test_cost_falls_over_the_rounds_and_ends_below_the_random_start(method: str) -> None:
    rounds: list[SearchRound] = []
    plan = make_plan(method, rounds=120, progress=rounds.append)
    first = np.mean([turn.mean_rate for turn in rounds[:5]])
    last = np.mean([turn.mean_rate for turn in rounds[-5:]])

    assert last < 0.7 * first
    assert plan.cost < rounds[0].best_rate * PROBLEM.training.total_samples / 3600


@pytest.mark.parametrize("method", ["rl", "rl-rnn", "rl-joint"])
def test_a_loaded_policy_gives_the_plan_it_was_saved_with(method: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy.safetensors"
    trained = make_plan(method, rounds=60, save_policy=policy)
    asked = make_plan(method, rounds=0, load_policy=policy)

    assert asked.stages == trained.stages
    assert asked.cost == trained.cost


def test_a_warm_start_from_other_problems_starts_lower_than_a_cold_one(tmp_path: Path) -> None:
    policy = tmp_path / "policy.safetensors"
    # Problems of one family: the same machines and layers, another amount of work and another floor.
    make_plan("rl", PROBLEM.with_floor(20_000.0), rounds=120, save_policy=policy)
    cold: list[SearchRound] = []
    warm: list[SearchRound] = []
    make_plan("rl", rounds=5, progress=cold.append)
    make_plan("rl", rounds=5, load_policy=policy, progress=warm.append)

    assert warm[0].mean_rate < 0.7 * cold[0].mean_rate


def test_features_are_index_kind_sizes_and_communication_times() -> None:
    features = layer_features(PROBLEM)

    assert features.shape == (10, NUM_POSITIONS + len(KINDS) + 2 + 5)
    assert features[3, :NUM_POSITIONS].nonzero().flatten().tolist() == [3]
    assert features[0, NUM_POSITIONS : NUM_POSITIONS + len(KINDS)].tolist() == [float(k == "embedding") for k in KINDS]


def test_policies_of_one_seed_are_equal_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two = (PolicyNetwork(Shape("lstm", 3, False), seed=9) for _ in range(2))

    assert torch.rand(1) == expected
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


@pytest.mark.parametrize("content", [b"", b"not a policy", b"\xff" * 100])
def test_a_file_that_is_no_policy_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(content)
    with pytest.raises(DovetailError, match="is not a policy") as caught:
        make_plan("rl", load_policy=path)
    assert "--save-policy" in caught.value.hint


def test_a_policy_for_other_types_or_another_method_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    make_plan("rl", rounds=1, save_policy=path)

    with pytest.raises(DovetailError, match="lstm policy for 5 types, and this needs a rnn policy"):
        make_plan("rl-rnn", load_policy=path)
    with pytest.raises(DovetailError, match="needs a lstm policy for 2 types"):
        make_plan("rl", synthetic_problem(num_layers=3, num_types=2, seed=0), load_policy=path)


def test_measured_runs_overrule_the_model() -> None:
    # By the model type b is cheaper for both layers. In truth it runs ten times slower than modelled.
    on = {
        "a": LayerTime(compute_s=1.0, comm_s=0.0, compute_parallel=0.9, comm_parallel=1.0),
        "b": LayerTime(compute_s=0.8, comm_s=0.0, compute_parallel=0.9, comm_parallel=1.0),
    }
    problem = Problem(
        training=Training(samples=3600, batch=10),
        resources=(ResourceType(name="a", price_per_hour=1.0), ResourceType(name="b", price_per_hour=1.0)),
        layers=(Layer(name="0", on=on), Layer(name="1", on=on)),
    )
    noise = np.random.default_rng(0)
    runs: list[tuple[str, ...]] = []

    def measure(_: Problem, stages: Sequence[Stage]) -> float:
        runs.append(tuple(stage.resource for stage in stages))
        slow = any(stage.resource == "b" for stage in stages)
        return float((1.0 if slow else 10.0) * noise.uniform(0.95, 1.05))

    modelled = make_plan("rl", problem, rounds=40)
    measured = make_plan("rl", problem, rounds=40, measure=measure)

    assert {stage.resource for stage in modelled.stages} == {"b"}
    assert {stage.resource for stage in measured.stages} == {"a"}
    assert len(runs) == len(set(runs))  # what was run once is not run again
    assert measured.measured_samples_per_s == pytest.approx(10.0, rel=0.06)
    assert modelled.measured_samples_per_s is None


def test_runs_that_all_miss_the_floor_say_how_far_they_came() -> None:
    problem = PROBLEM.with_floor(20_000.0)
    with pytest.raises(DovetailError, match=r"none reached min_samples_per_s = 20,000: the fastest reached 9,000"):
        make_plan("rl", problem, rounds=3, measure=lambda problem, stages: 9_000.0)


def test_a_measurement_that_is_no_speed_is_refused() -> None:
    with pytest.raises(DovetailError, match="measuring a plan gave nan"):
        make_plan("rl", rounds=2, measure=lambda problem, stages: float("nan"))
