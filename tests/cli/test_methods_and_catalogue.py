"""`dovetail plan --compare`, its methods and policies, and `dovetail catalogue`, as a user meets them."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dovetail.cli.main import app

EXAMPLES = Path(__file__).parents[2] / "examples" / "problems"
NCE = str(EXAMPLES / "nce.toml")
TWO_CLOUD_TYPES = """
[training]
samples = 1_000_000
batch = 100

[[resource]]
type = "aws:g5.xlarge"

[[resource]]
type = "aws:c7a.medium"
name = "core"
limit = 4

[[layer]]
name = "fc"
[layer.on."g5.xlarge"]
compute_s = 0.01
comm_s = 0.0
compute_parallel = 1.0
comm_parallel = 1.0
[layer.on.core]
compute_s = 1.0
comm_s = 0.0
compute_parallel = 1.0
comm_parallel = 1.0
"""

OWN_CATALOGUE = """
[[type]]
id = "aws:g5.xlarge"
kind = "gpu"
accelerator = "A10G"
num_accelerators = 1
on_demand_usd_per_hour = 0.5
spot_usd_per_hour = 0.25
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def last_json(result: Result) -> dict:
    return json.loads(result.stdout.rstrip("\n").splitlines()[-1])


@pytest.fixture
def cloud_problem(tmp_path: Path) -> Path:
    path = tmp_path / "cloud.toml"
    path.write_text(TWO_CLOUD_TYPES)
    return path


def test_compare_has_a_row_for_every_method_and_a_reason_for_those_without_a_plan(tmp_path: Path) -> None:
    picture = tmp_path / "compare.svg"
    problem = EXAMPLES / "ctr-dnn.toml"
    result = run("plan", problem, "--compare", "--rounds", "5", "--json", "--plot", picture)
    rows = {row["method"]: row for row in last_json(result)["compare"]}

    assert result.exit_code == 0
    assert set(rows) == {
        "exact",
        "rl",
        "rl-rnn",
        "rl-joint",
        "bayesian",
        "genetic",
        "greedy",
        "heuristic",
        "cpu",
        "gpu",
        "brute-force",
    }
    assert "found no plan" in rows["cpu"]["error"]
    assert all(row["cost"] >= rows["exact"]["lower_bound"] for row in rows.values() if "cost" in row)
    assert "rl-joint" in picture.read_text()


def test_compare_prints_a_table_with_the_ratio_to_the_optimum() -> None:
    result = run("plan", NCE, "--compare", "--rounds", "3")

    assert result.exit_code == 0
    for word in ("x optimum", "1.0000", "brute-force", "proven optimal"):
        assert word in result.stdout


def test_compare_goes_on_without_a_part_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)  # as if it were not there
    table, as_json = (run("plan", NCE, "--compare", "--rounds", "2", *more) for more in ([], ["--json"]))
    rows = {row["method"]: row for row in last_json(as_json)["compare"]}

    assert "bayesian: Optuna, which `bayesian` stands on, is not installed; install it with: " in table.stdout
    assert "is not installed" in rows["bayesian"]["error"]
    assert "dovetail[bayesian]" in rows["bayesian"]["hint"]
    assert "cost" in rows["brute-force"]


def test_compare_of_a_problem_that_no_method_can_plan_says_why(tmp_path: Path) -> None:
    path = tmp_path / "timeless.toml"
    path.write_text(TWO_CLOUD_TYPES.replace("compute_s = 0.01", "compute_s = 0.0"))
    result = run("plan", path, "--compare", "--json")

    assert result.exit_code == 1
    assert "infinitely fast" in last_json(result)["error"]


@pytest.mark.parametrize(
    "option",
    [
        ["--load-policy", "policy.safetensors"],
        ["--save-policy", "policy.safetensors"],
        ["--measured", "lab:speed"],
        ["--plot-learning", "learning.svg"],
    ],
)
def test_compare_takes_nothing_that_speaks_of_one_policy(option: list[str]) -> None:
    result = run("plan", NCE, "--compare", *option)

    assert result.exit_code == 2
    assert option[0] in result.stderr


@pytest.mark.parametrize(
    ("method", "option", "takes_it"),
    [
        ("exact", ["--measured", "json:dumps"], "rl-rnn"),
        ("exact", ["--save-policy", "policy.safetensors"], "rl-rnn"),
        ("exact", ["--load-policy", "policy.safetensors"], "rl-rnn"),
        ("exact", ["--rounds", "5"], "genetic"),
        ("exact", ["--provision", "paper"], "genetic"),
        ("brute-force", ["--measured", "json:dumps"], "rl-rnn"),
        ("brute-force", ["--rounds", "5"], "genetic"),
        ("brute-force", ["--provision", "paper"], "genetic"),
        ("genetic", ["--measured", "json:dumps"], "rl-rnn"),
        ("greedy", ["--rounds", "5"], "genetic"),
        ("rl-joint", ["--provision", "paper"], "genetic"),
    ],
)
def test_a_method_refuses_what_it_has_no_use_for(method: str, option: list[str], takes_it: str) -> None:
    result = run("plan", NCE, "--method", method, *option, "--json")

    assert result.exit_code == 1
    assert f"`{method}` " in last_json(result)["error"]
    assert option[0] in last_json(result)["error"]
    assert takes_it in last_json(result)["hint"]


@pytest.mark.parametrize("question", [["--pareto"], ["--max-cost-per-hour", "30"]])
def test_questions_for_exact_refuse_what_exact_has_no_use_for(question: list[str]) -> None:
    assert run("plan", NCE, *question, "--rounds", "5").exit_code == 1


def test_a_policy_is_saved_loaded_and_gives_the_same_plan(tmp_path: Path) -> None:
    policy, picture = tmp_path / "policy.safetensors", tmp_path / "learning.svg"
    problem = EXAMPLES / "2emb.toml"
    rl = ["plan", problem, "--method", "rl", "--json"]
    trained = run(*rl, "--rounds", "20", "--save-policy", policy, "--plot-learning", picture)
    asked = run(*rl, "--rounds", "0", "--load-policy", policy)

    assert last_json(trained)["stages"] == last_json(asked)["stages"]
    assert "round" in picture.read_text()


def test_a_function_of_the_users_measures_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bench_nce.py").write_text("def speed(problem, stages):\n    return 2e6 / len(stages)\n")
    monkeypatch.chdir(tmp_path)
    measured = run("plan", NCE, "--method", "rl", "--rounds", "5", "--measured", "bench_nce:speed", "--json")
    missing = run("plan", NCE, "--method", "rl", "--measured", "bench_nce:sped", "--json")

    assert measured.exit_code == 0
    assert len(last_json(measured)["stages"]) == 1
    assert missing.exit_code == 1
    assert "bench_nce:sped" in missing.stderr


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("bench", "is not of the form package.module:function"),
        ("no_such_bench:speed", "there is no module `no_such_bench`"),
        ("bench_broken:speed", "importing it failed: ValueError: no"),
    ],
)
def test_a_function_that_is_not_there_is_an_error_with_a_way_out(
    reference: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bench_broken.py").write_text("raise ValueError('no')\n")
    monkeypatch.chdir(tmp_path)
    result = run("plan", NCE, "--method", "rl", "--measured", reference, "--json")

    assert result.exit_code == 1
    assert last_json(result)["error"] == f"--measured `{reference}`: {reason}"


def test_measured_rounds_are_drawn_behind_the_modelled_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bench_drawn.py").write_text("def speed(problem, stages):\n    return 2e6 / len(stages)\n")
    monkeypatch.chdir(tmp_path)
    measured = ["--rounds", "5", "--measured", "bench_drawn:speed", "--plot-learning", "learning.html"]
    result = run("plan", NCE, "--method", "rl", *measured)
    page = (tmp_path / "learning.html").read_text()

    # 5 rounds by the model, then 20 measured ones.
    assert result.exit_code == 0
    assert "measured from round 6 on" in page
    assert "of 25" in page


def test_a_check_reads_problems_with_catalogue_types_as_planning_does(cloud_problem: Path, tmp_path: Path) -> None:
    own, plan = tmp_path / "own.toml", tmp_path / "plan.json"
    own.write_text(OWN_CATALOGUE)
    for more in ([], ["--spot"], ["--catalogue", own], ["--catalogue", own, "--spot"]):
        planned = last_json(run("plan", cloud_problem, *more, "--out", plan, "--json"))
        checked = run("check", cloud_problem, plan, *more, "--json")

        assert checked.exit_code == 0, checked.stderr
        assert last_json(checked)["cost_per_hour"] == pytest.approx(planned["cost_per_hour"])
        assert last_json(checked)["warnings"] == []

    assert "warning: " in run("check", cloud_problem, plan).stderr  # other prices, another problem


def test_types_come_from_the_catalogue_with_on_demand_or_spot_prices(cloud_problem: Path) -> None:
    listed = last_json(run("catalogue", "--json"))["types"]
    prices = next(entry for entry in listed if entry["id"] == "aws:g5.xlarge")
    on_demand, spot = (last_json(run("plan", cloud_problem, "--json", *more)) for more in ([], ["--spot"]))

    assert on_demand["stages"][0]["resource"] == "g5.xlarge"
    assert on_demand["cost_per_hour"] == pytest.approx(prices["on_demand_usd_per_hour"])
    assert spot["cost_per_hour"] == pytest.approx(prices["spot_usd_per_hour"])


def test_a_users_own_catalogue_replaces_ours(cloud_problem: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(OWN_CATALOGUE)
    result = run("plan", cloud_problem, "--catalogue", own, "--json")

    assert result.exit_code == 0, result.stderr
    assert last_json(result)["cost_per_hour"] == pytest.approx(0.5)


def test_an_unknown_type_is_answered_with_the_nearest(cloud_problem: Path) -> None:
    cloud_problem.write_text(TWO_CLOUD_TYPES.replace("aws:g5.xlarge", "aws:g5.xlarg"))
    result = run("plan", cloud_problem, "--json")

    assert result.exit_code == 1
    assert "resource[0].type" in result.stderr
    assert "aws:g5.xlarge" in last_json(result)["hint"]


def test_spot_prices_without_catalogue_types_are_refused() -> None:
    result = run("plan", NCE, "--spot", "--json")

    assert result.exit_code == 1
    assert "no spot prices to use" in result.stderr


def test_the_catalogue_filters_and_says_when_its_prices_are_from() -> None:
    result = run("catalogue", "--cloud", "gcp", "--kind", "gpu", "--max-usd-per-hour", "3")

    assert result.exit_code == 0
    assert "gcp:a100-x1" in result.stdout
    assert "aws:" not in result.stdout
    assert "prices as of 2026-08" in result.stdout
    assert run("catalogue", "--cloud", "awz").exit_code == 1
