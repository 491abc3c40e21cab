"""`dovetail plan` and `dovetail check` as a user meets them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dovetail.cli.main import app
from dovetail.cli.plan import METHOD_NAMES, _getting_ready
from dovetail.planner import cheapest_route
from dovetail.planner.methods import METHODS
from dovetail.spec import read_problem, write_problem
from dovetail.spec.synthetic import synthetic_problem

EXAMPLES = Path(__file__).parents[2] / "examples" / "problems"
CTR_DNN = str(EXAMPLES / "ctr-dnn.toml")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def last_json(result: Result) -> dict:
    return json.loads(result.stdout.rstrip("\n").splitlines()[-1])


def test_the_planner_is_compiled_once_on_a_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(cheapest_route.cheapest._cache, "_cache_path", str(tmp_path))
    assert _getting_ready() == "compiling the planner for this machine, once"

    (tmp_path / "cheapest_route.cheapest-82.py311.nbi").touch()

    assert _getting_ready() == "loading the planner"


def test_help_imports_neither_torch_nor_ray_nor_the_compiler() -> None:
    code = (
        "import sys\n"
        "from dovetail.cli.main import app\n"
        "for command in (['--help'], ['plan', '--help']):\n"
        "    try: app(command)\n"
        "    except SystemExit: pass\n"
        "heavy = {'torch', 'ray', 'numba', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False)

    assert done.returncode == 0, done.stderr
    assert "plan" in done.stdout
    assert "brute-force" in done.stdout


def test_the_help_names_every_method() -> None:
    assert METHOD_NAMES == METHODS


@pytest.mark.parametrize("name", ["ctr-dnn", "matchnet", "2emb", "nce"])
def test_every_example_has_a_proven_plan_in_the_promised_format(name: str) -> None:
    result = run("plan", EXAMPLES / f"{name}.toml", "--json")
    plan = last_json(result)

    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    assert set(plan) >= {
        "method",
        "stages",
        "samples_per_s",
        "cost_per_hour",
        "cost",
        "lower_bound",
        "optimal",
        "seconds",
    }
    assert set(plan["stages"][0]) >= {"resource", "first_layer", "last_layer", "units"}
    assert plan["method"] == "exact"
    assert plan["optimal"] is True
    assert 0 <= plan["cost"] - plan["lower_bound"] <= 1e-6 * plan["cost"]


def test_toml_and_json_of_one_problem_give_one_plan(tmp_path: Path) -> None:
    write_problem(read_problem(Path(CTR_DNN)), tmp_path / "p.json")
    plans = [last_json(run("plan", path, "--json")) for path in (CTR_DNN, tmp_path / "p.json")]
    for plan in plans:
        del plan["seconds"]

    assert plans[0] == plans[1]


def test_the_table_names_stages_speed_cost_and_proof() -> None:
    result = run("plan", CTR_DNN)

    assert result.exit_code == 0
    for word in ("embedding", "v100", "bottleneck", "samples/s", "per hour", "no plan costs less"):
        assert word in result.stdout


def test_a_written_plan_passes_the_check_and_a_damaged_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert run("plan", CTR_DNN, "--out", path).exit_code == 0
    plan = json.loads(path.read_text())
    checked = run("check", CTR_DNN, path, "--json")

    assert checked.exit_code == 0
    assert last_json(checked)["cost"] == pytest.approx(plan["cost"])

    plan["stages"][1]["units"] = 1
    path.write_text(json.dumps(plan))
    slower = run("check", CTR_DNN, path)
    assert slower.exit_code == 1
    assert "violates: " in slower.stdout
    assert "min_samples_per_s" in slower.stdout

    plan["stages"][1]["resource"] = "v1000"
    path.write_text(json.dumps(plan))
    wrong = run("check", CTR_DNN, path, "--json")
    assert wrong.exit_code == 1
    assert "v100" in last_json(wrong)["hint"]


def test_a_check_takes_the_floor_from_the_command_line_too(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert run("plan", CTR_DNN, "--finish-in", "15s", "--out", path).exit_code == 0
    speed = json.loads(path.read_text())["samples_per_s"]

    kept = run("check", CTR_DNN, path, "--finish-in", "15s")
    assert kept.exit_code == 0
    assert kept.stderr == ""
    for missed in (["--finish-in", "10s"], ["--min-samples-per-s", speed * 1.01]):
        checked = run("check", CTR_DNN, path, *missed)
        assert checked.exit_code == 1
        assert "violates: " in checked.stdout
    assert run("check", CTR_DNN, path, "--finish-in", "15s", "--min-samples-per-s", "1").exit_code == 2


def test_a_check_warns_of_a_plan_that_was_made_for_another_problem(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert run("plan", CTR_DNN, "--finish-in", "15s", "--out", path).exit_code == 0
    other = run("check", CTR_DNN, path, "--json")

    assert other.exit_code == 0
    assert other.stderr.startswith(f"warning: {path}: was made for another problem")
    assert len(last_json(other)["warnings"]) == 1
    assert last_json(run("check", CTR_DNN, path, "--finish-in", "15s", "--json"))["warnings"] == []

    plan = json.loads(path.read_text())
    del plan["problem"]  # a plan that does not say what it was made for
    path.write_text(json.dumps(plan))
    assert last_json(run("check", CTR_DNN, path, "--json"))["warnings"] == []


def test_a_check_of_a_whole_curve_asks_for_one_of_its_plans(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    assert run("plan", CTR_DNN, "--pareto", "--points", "3", "--out", path).exit_code == 0
    refused = run("check", CTR_DNN, path)

    assert refused.exit_code == 1
    assert "holds the plans of --pareto" in refused.stderr
    assert "hint: copy one entry of `pareto` to a file of its own" in refused.stderr

    path.write_text(json.dumps(json.loads(path.read_text())["pareto"][0]))
    assert run("check", CTR_DNN, path).exit_code == 0


@pytest.mark.parametrize("content", ["", "{"])
def test_a_plan_file_that_cannot_be_read_is_answered_with_the_page_of_plan_files(tmp_path: Path, content: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)

    assert "plan-file.md" in last_json(run("check", CTR_DNN, path, "--json"))["hint"]


def test_finish_in_is_a_floor() -> None:
    problem = read_problem(Path(CTR_DNN))
    plan = last_json(run("plan", CTR_DNN, "--finish-in", "15s", "--json"))

    assert plan["samples_per_s"] >= problem.training.total_samples / 15


def test_money_buys_the_fastest_plan_within_it() -> None:
    poor, rich = (last_json(run("plan", CTR_DNN, "--max-cost-per-hour", cap, "--json")) for cap in ("15", "30"))

    assert poor["cost_per_hour"] <= 15 < rich["cost_per_hour"] <= 30
    assert rich["samples_per_s"] > poor["samples_per_s"]


def test_the_curve_is_one_object_with_a_plan_a_point() -> None:
    curve = last_json(run("plan", CTR_DNN, "--pareto", "--points", "5", "--json"))["pareto"]

    assert len(curve) == 5
    assert all(plan["optimal"] for plan in curve)


@pytest.mark.parametrize("ending", ["png", "svg", "html"])
@pytest.mark.parametrize("more", [[], ["--pareto", "--points", "4"]])
def test_pictures_are_written(tmp_path: Path, ending: str, more: list[str]) -> None:
    path = tmp_path / f"plan.{ending}"

    assert run("plan", CTR_DNN, "--plot", path, *more).exit_code == 0
    assert path.stat().st_size > 5000


def test_no_plan_is_an_error_with_values_that_would_do() -> None:
    result = run("plan", CTR_DNN, "--min-samples-per-s", "1e9", "--json")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: no plan reaches min_samples_per_s = 1000000000")
    assert "hint: lower `min_samples_per_s` to " in result.stderr
    assert set(last_json(result)) == {"error", "hint"}


@pytest.mark.parametrize("more", [[], ["--max-cost-per-hour", "20"], ["--pareto"]])
def test_a_time_that_no_plan_keeps_is_answered_with_the_shortest_that_one_does(more: list[str]) -> None:
    refused = run("plan", CTR_DNN, "--finish-in", "1s", *more, "--json")
    _, _, shortest = last_json(refused)["hint"].rpartition("--finish-in ")

    assert refused.exit_code == 1
    assert run("plan", CTR_DNN, "--finish-in", shortest, *more).exit_code == 0
    shorter = f"{float(shortest.removesuffix('s')) * 0.98}s"
    assert run("plan", CTR_DNN, "--finish-in", shorter, *more).exit_code == 1


def test_long_times_are_told_in_long_units(tmp_path: Path) -> None:
    # One second a sample, and nothing to share: 1,000,000 seconds are 11.574 days.
    path = tmp_path / "slow.toml"
    path.write_text(
        "training = {samples = 1_000_000, batch = 1}\n"
        "[[resource]]\nname = 'cpu'\nprice_per_hour = 1.0\n"
        "[[layer]]\nname = 'fc'\n"
        "on.cpu = {compute_s = 1.0, comm_s = 0.0, compute_parallel = 0.0, comm_parallel = 0.0}\n"
    )

    assert run("plan", path, "--finish-in", "1d").stderr.endswith("--finish-in 11.6d\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "missing.toml"],
        ["plan", CTR_DNN, "--method", "exat"],
        ["plan", CTR_DNN, "--finish-in", "soon"],
        ["plan", CTR_DNN, "--plot", "plan.gif"],
        ["plan", CTR_DNN, "--plot", "no/such/folder/plan.png"],
        ["plan", CTR_DNN, "--out", "no/such/folder/plan.json"],
        ["plan", CTR_DNN, "--max-cost-per-hour", "-3"],
        ["plan", CTR_DNN, "--min-samples-per-s", "nan"],
        ["plan", CTR_DNN, "--max-cost-per-hour", "nan"],
        ["plan", CTR_DNN, "--time-limit", "nan"],
        ["plan", CTR_DNN, "--time-limit", "-1"],
    ],
)
def test_wrong_arguments_exit_1_with_error_and_hint_and_no_traceback(arguments: list[str]) -> None:
    result = run(*arguments, "--json")

    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: ")
    assert "\nhint: " in result.stderr
    assert set(last_json(result)) == {"error", "hint"}
    assert "Traceback" not in result.output


def test_no_time_to_plan_gives_a_plan_with_an_honest_gap() -> None:
    hurried, proven = (last_json(run("plan", CTR_DNN, "--time-limit", limit, "--json")) for limit in ("0", "30"))

    assert not hurried["optimal"]
    assert hurried["lower_bound"] <= proven["cost"] <= hurried["cost"]


def test_wrong_usage_exits_2() -> None:
    both = ["plan", CTR_DNN, "--min-samples-per-s", "1", "--finish-in", "6h"]

    assert run(*both).exit_code == 2
    assert run("plan").exit_code == 2
    assert run("plan", CTR_DNN, "--no-such-option").exit_code == 2


def test_a_made_problem_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    for name in ("a.toml", "b.toml"):
        arguments = ["--layers", "5", "--types", "3", "--limits", "1", "--links", "1", "--holes", "0.3", "--seed", "7"]
        assert run("problem", "make", tmp_path / name, *arguments).exit_code == 0

    assert (tmp_path / "a.toml").read_bytes() == (tmp_path / "b.toml").read_bytes()
    expected = synthetic_problem(num_layers=5, num_types=3, seed=7, limit_share=1.0, link_share=1.0, hole_share=0.3)
    assert read_problem(tmp_path / "a.toml") == expected
