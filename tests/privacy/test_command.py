"""`dovetail privacy` and `dovetail.privacy(...)`."""

import json

import pytest
from typer.testing import CliRunner

import dovetail
from dovetail.cli.main import app
from dovetail.errors import SpecError
from dovetail.privacy.accountant import SpentSteps, epsilon_of

ASKED = ["--samples", "50000", "--batch", "600", "--epochs", "3", "--delta", "1e-6"]


def answer(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["privacy", *words])
    return result.exit_code, result.stdout, result.stderr


def test_the_noise_that_a_budget_needs_is_one_object_on_the_last_line():
    code, out, _ = answer(*ASKED, "--epsilon", "2", "--json")

    found = json.loads(out.splitlines()[-1])
    assert code == 0
    assert found["steps"] == 3 * 84  # 50,000 / 600 is 83.3
    assert found["lasts"]
    spent = epsilon_of([SpentSteps(rate=600 / 50_000, noise=found["noise"], steps=252)], 1e-6)
    assert found["epsilon"] == pytest.approx(spent, rel=1e-6)
    assert 1.98 <= spent <= 2.0


def test_noise_that_is_given_is_priced_and_says_how_long_a_budget_lasts():
    _, out, _ = answer(*ASKED, "--noise", "1.5", "--json")
    whole = json.loads(out)["epsilon"]

    _, out, _ = answer(*ASKED, "--noise", "1.5", "--epsilon", f"{whole / 2}", "--json")

    found = json.loads(out)
    assert 0 < found["steps"] < found["planned_steps"]
    assert not found["lasts"]
    assert found["epsilon"] <= whole / 2


def test_a_person_reads_noise_steps_and_what_is_spent_on_the_way():
    code, out, _ = answer(*ASKED, "--epsilon", "2", "--accountant", "rdp")

    assert code == 0
    assert out.startswith("noise ")
    assert "252 steps" in out
    assert "spent by epochs" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--samples", "10", "--batch", "20", "--delta", "1e-5", "--epsilon", "1"], "batch is 20"),
        ([*ASKED, "--delta", "0", "--epsilon", "1"], "delta is 0"),
        ([*ASKED, "--epsilon", "-1"], "epsilon is -1"),
        ([*ASKED, "--noise", "nan"], "noise is nan"),
        (ASKED, "epsilon is missing"),
        ([*ASKED, "--epsilon", "1", "--epochs", "0"], "epochs is 0"),
        ([*ASKED, "--epsilon", "1e-9"], "no noise keeps"),
    ],
)
def test_what_nobody_could_train_by_is_refused_with_a_hint(words, complaint):
    code, _, err = answer(*words)

    assert code == 1
    assert err.startswith(f"error: {complaint}")
    assert "hint: " in err


def test_the_package_answers_as_the_command_does():
    found = dovetail.privacy(samples=1_000, batch=10, delta=1e-4, epsilon=4.0, accountant="rdp")

    assert found.steps == 100
    assert found.epsilon <= 4.0
    with pytest.raises(SpecError, match="samples is 0"):
        dovetail.privacy(samples=0, batch=10, delta=1e-4, epsilon=4.0)
