"""`dovetail plan --compare`, its methods and policies, and `dovetail catalogue`, as a user meets them."""

import json
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


def test_types_come_from_the_catalogue_with_on_demand_or_spot_prices(cloud_problem: Path) -> None:
    listed = last_json(run("catalogue", "--json"))["types"]
    prices = next(entry for entry in listed if entry["id"] == "aws:g5.xlarge")
    on_demand, spot = (last_json(run("plan", cloud_problem, "--json", *more)) for more in ([], ["--spot"]))

    assert on_demand["stages"][0]["resource"] == "g5.xlarge"
    assert on_demand["cost_per_hour"] == pytest.approx(prices["on_demand_usd_per_hour"])
    assert spot["cost_per_hour"] == pytest.approx(prices["spot_usd_per_hour"])


def test_a_users_own_catalogue_replaces_ours(cloud_problem: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[[type]]\nid = "aws:g5.xlarge"\nkind = "gpu"\naccelerator = "A10G"\nnum_accelerators = 1\non_demand_usd_per_hour = 0.5\n')
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
