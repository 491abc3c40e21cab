"""Every method: legal plans or a reason, limits obeyed, and the same plan for the same seed."""

import itertools
import math
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cost import evaluate
from dovetail.errors import PlanError
from dovetail.planner.arrays import as_arrays
from dovetail.planner.baselines.score import Proposal, Scorer
from dovetail.planner.demands import Demands
from dovetail.planner.methods import METHODS, SEARCHES, Options, plan_with
from dovetail.spec import Layer, LayerTime, Plan, Problem, ResourceType, Training, read_problem
from dovetail.spec.synthetic import synthetic_problem

EXAMPLES = Path(__file__).parents[2] / "examples" / "problems"
MODELS = {name: read_problem(EXAMPLES / f"{name}.toml") for name in ("ctr-dnn", "matchnet", "2emb", "nce")}
SHORT = Options(rounds=30)
TOO_SLOW_ALONE = {("cpu", "ctr-dnn"), ("cpu", "matchnet")}  # cores alone do not reach the floor, however many


def few(method: str, rounds: int) -> Options:
    """Return so many rounds; a fourth for `rl-joint`, which draws units as well and takes several times as long."""
    return Options(rounds=rounds // 4 if method == "rl-joint" else rounds)


def make_plan(method: str, problem: Problem, options: Options = SHORT, **demands: object) -> Plan:
    return plan_with(method, problem, Demands(**demands), clock=time.perf_counter, options=options)


def limited(problem: Problem, *limits: int) -> Problem:
    resources = tuple(
        msgspec.structs.replace(resource, limit=limit)
        for resource, limit in zip(problem.resources, limits, strict=True)
    )
    return msgspec.structs.replace(problem, resources=resources)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_legal_plan_for_every_model_or_says_why_not_and_none_beats_the_proof(
    method: str, model: str
) -> None:
    problem = MODELS[model]
    optimum = make_plan("exact", problem)
    if (method, model) in TOO_SLOW_ALONE:
        with pytest.raises(PlanError, match="found no plan that meets the demands"):
            make_plan(method, problem)
        return
    plan = make_plan(method, problem, few(method, 30))
    checked = evaluate(problem, plan.stages)

    assert not checked.violations
    assert plan.method == method
    assert plan.cost == pytest.approx(checked.cost)
    assert plan.cost >= optimum.lower_bound
    assert plan.optimal == (plan.cost <= optimum.lower_bound * (1 + 1e-6))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_obeys_limits_or_says_that_it_has_no_plan(method: str) -> None:
    # The cheapest plan without limits takes 8 cores and 5 GPUs.
    problem = limited(MODELS["ctr-dnn"], 7, 6)
    if method in ("cpu", "gpu"):
        with pytest.raises(PlanError, match=f"`{method}` found no plan that meets the demands, though there is one"):
            make_plan(method, problem)
    else:
        plan = make_plan(method, problem, few(method, 100))
        assert not evaluate(problem, plan.stages).violations


def test_a_rule_of_thumb_without_a_legal_plan_says_so_and_names_the_way_out() -> None:
    problem = limited(MODELS["ctr-dnn"], 3, 32)
    with pytest.raises(PlanError, match="`cpu` found no plan that meets the demands, though there is one") as caught:
        make_plan("cpu", problem)
    assert "exact" in caught.value.hint


def test_a_rule_of_thumb_without_its_kind_of_machine_says_so() -> None:
    only_gpus = synthetic_problem(num_layers=2, num_types=2, seed=0)
    only_gpus = msgspec.structs.replace(
        only_gpus, resources=tuple(msgspec.structs.replace(r, kind="gpu") for r in only_gpus.resources)
    )
    for method in ("cpu", "heuristic"):
        with pytest.raises(PlanError, match="cpu"):
            make_plan(method, only_gpus)


def test_the_heuristic_puts_the_first_layer_on_the_cpu_and_the_rest_on_the_best_gpu() -> None:
    plan = make_plan("heuristic", MODELS["ctr-dnn"])

    assert [(stage.resource, stage.first_layer, stage.last_layer) for stage in plan.stages] == [
        ("cpu", 0, 0),
        ("v100", 1, 15),
    ]


@pytest.mark.parametrize("method", ["rl", "rl-joint", "genetic", "bayesian"])
def test_the_same_seed_gives_the_same_plan(method: str) -> None:
    problem = synthetic_problem(num_layers=8, num_types=4, seed=3)
    options = replace(few(method, 20), seed=11)
    first, second = (make_plan(method, problem, options) for _ in range(2))

    assert first.stages == second.stages


@pytest.mark.parametrize("method", [name for name in SEARCHES if name not in ("greedy", "heuristic", "cpu", "gpu")])
def test_every_searching_method_reports_rounds_whose_best_never_rises(method: str) -> None:
    seen = []
    make_plan(method, synthetic_problem(num_layers=6, num_types=3, seed=1), Options(rounds=15, progress=seen.append))

    assert len(seen) >= 15
    assert all(later.best_rate <= earlier.best_rate for earlier, later in itertools.pairwise(seen))
    assert [turn.number for turn in seen] == list(range(1, len(seen) + 1))


def test_at_most_so_many_stages_holds_for_searches_too() -> None:
    problem = synthetic_problem(num_layers=8, num_types=4, seed=5)
    for method in ("rl", "genetic"):
        assert len(make_plan(method, problem, max_stages=2).stages) <= 2


def test_splitting_stages_is_for_methods_that_can() -> None:
    with pytest.raises(PlanError, match="`rl` cannot split stages"):
        make_plan("rl", MODELS["nce"], split_stages=True)


def test_splitting_a_stage_lifts_the_cap_that_its_serial_part_sets() -> None:
    # Two layers of half a serial second each: together at most 10 / 1.0, apart 10 / 0.5 samples/s.
    half = LayerTime(compute_s=0.5, comm_s=0.0, compute_parallel=0.0, comm_parallel=0.0)
    problem = Problem(
        training=Training(samples=100, batch=10, min_samples_per_s=15.0),
        resources=(ResourceType(name="cpu", price_per_hour=1.0),),
        layers=(Layer(name="a", on={"cpu": half}), Layer(name="b", on={"cpu": half})),
    )
    with pytest.raises(PlanError, match="the fastest reaches 10"):
        make_plan("exact", problem)
    plan = make_plan("exact", problem, split_stages=True)

    assert [stage.resource for stage in plan.stages] == ["cpu", "cpu"]
    assert plan.samples_per_s == pytest.approx(20.0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), floor=st.sampled_from([0.0, 1e4, 5e4, 2e5]), limits=st.sampled_from([0.0, 0.5]))
def test_provisioning_as_in_the_paper_is_legal_and_never_cheaper_than_ours(
    seed: int, floor: float, limits: float
) -> None:
    problem = synthetic_problem(num_layers=6, num_types=3, seed=seed, min_samples_per_s=floor, limit_share=limits)
    rng = np.random.default_rng(seed)
    proposal = Proposal(rng.integers(0, 3, size=(20, 6)))
    ours, theirs = (
        Scorer(as_arrays(problem), min_samples_per_s=floor, max_stages=None, provisioning=kind).score(proposal)
        for kind in ("exact", "paper")
    )

    assert (theirs.rates >= ours.rates * (1 - 2e-6)).all()
    assert (np.isfinite(theirs.rates) <= np.isfinite(ours.rates)).all()
    assert ((theirs.shortfalls > 0) == np.isinf(theirs.rates)).all()


def test_provisioning_as_in_the_paper_gives_plans_of_whole_units_that_meet_the_floor() -> None:
    plan = make_plan("genetic", MODELS["ctr-dnn"], Options(provisioning="paper"))

    assert plan.samples_per_s >= MODELS["ctr-dnn"].min_samples_per_s
    assert plan.cost >= make_plan("genetic", MODELS["ctr-dnn"]).cost * (1 - 1e-9)


def test_options_of_learning_methods_are_refused_by_others() -> None:
    with pytest.raises(PlanError, match="no policy to load, save or refine"):
        make_plan("genetic", MODELS["nce"], Options(save_policy=Path("policy.safetensors")))


def test_an_unknown_method_is_answered_with_the_nearest() -> None:
    with pytest.raises(PlanError) as caught:
        make_plan("genetics", MODELS["nce"])
    assert "did you mean `genetic`?" in caught.value.hint


def test_rewards_rank_legal_plans_by_cost_and_illegal_ones_below_by_what_they_miss() -> None:
    # 1 s of work on one unit, 10 samples a batch: with a limit of 4 units, at most 40 samples/s.
    work = LayerTime(compute_s=1.0, comm_s=0.0, compute_parallel=1.0, comm_parallel=1.0)
    slow = LayerTime(compute_s=2.0, comm_s=0.0, compute_parallel=1.0, comm_parallel=1.0)
    slower = LayerTime(compute_s=9.0, comm_s=0.0, compute_parallel=1.0, comm_parallel=1.0)
    problem = Problem(
        training=Training(samples=100, batch=10, min_samples_per_s=40.0),
        resources=tuple(ResourceType(name=name, price_per_hour=1.0, limit=4) for name in "abc"),
        layers=(Layer(name="0", on={"a": work, "b": slow, "c": slower}),),
    )
    scores = Scorer(as_arrays(problem), min_samples_per_s=40.0, max_stages=None).score(
        Proposal(np.array([[0], [1], [2]]))
    )
    reward = scores.reward()

    assert scores.rates[0] == pytest.approx(4 / 40)
    assert math.isinf(scores.rates[1])
    assert reward[0] > reward[1] > reward[2]
