"""What is written as YAML is read back by another reader to the letter."""

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dovetail.manifests.yaml import yaml_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    [
        "yes",
        "NO",
        "1.5",
        "0x1f",
        "null",
        "~",
        "- a",
        "a: b",
        "#x",
        "a\nb\n",
        " a\nb",
        "a\n\n",
        "\ttab\n",
        "é\u2028\x85\x7f",
    ]
)
SCALARS = TEXT | st.booleans() | st.integers(-(10**9), 10**9) | st.none()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=12
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(TEXT, VALUES, max_size=4))
@example({"": "\x1b\n"})  # a line that begins with what cannot be printed
def test_any_mapping_is_read_back_as_it_was(value: dict[str, object]) -> None:
    assert (yaml.safe_load(yaml_of(value)) or {}) == value


def test_a_script_stands_as_it_is_written() -> None:
    text = yaml_of({"run": "set -e\n\nif true; then\n  echo '$x: #1'\nfi\n"})

    assert text == "run: |\n  set -e\n\n  if true; then\n    echo '$x: #1'\n  fi\n"


@pytest.mark.parametrize(
    "word", ["true", "On", "no", "y", "null", "1", "1e3", ".5", "~", "-", "=", "2026-11-16", ".nan"]
)
def test_words_that_mean_something_else_stand_in_quotes(word: str) -> None:
    assert yaml_of({word: word}) == f'"{word}": "{word}"\n'


def test_several_documents_are_several() -> None:
    assert list(yaml.safe_load_all(yaml_of({"a": 1}, {"b": [2]}))) == [{"a": 1}, {"b": [2]}]
