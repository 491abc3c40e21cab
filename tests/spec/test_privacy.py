"""The section `[privacy]` of a run file: half a promise, and what would break one, is refused with the reason."""

import pytest

from dovetail.errors import SpecError
from dovetail.spec.run import Run, dotted_key, run_from

WHOLE = {"epsilon": 3.0, "delta": 1e-6, "clip": 1.0}


def private(privacy=WHOLE, **sections) -> Run:
    return run_from({"model": {"name": "ctr-dnn"}, "privacy": privacy, **sections}, {}, place="run.toml")


@pytest.mark.parametrize("missing", ["epsilon", "delta", "clip"])
def test_a_promise_needs_epsilon_delta_and_clip(missing):
    with pytest.raises(SpecError, match=rf"privacy\.{missing} is missing"):
        private({name: value for name, value in WHOLE.items() if name != missing})


def test_noise_alone_promises_nothing():
    with pytest.raises(SpecError, match=r"privacy\.epsilon is missing"):
        private({"noise": 1.0})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epsilon", 0),
        ("epsilon", float("inf")),
        ("delta", 0),
        ("delta", 1.0),
        ("delta", float("nan")),
        ("clip", -1),
        ("noise", 0.0),
        ("accountant", "moments"),
        ("aggregation", "secret"),
    ],
)
def test_a_number_that_promises_nothing_is_refused_with_a_hint(key, value):
    with pytest.raises(SpecError) as caught:
        private({**WHOLE, key: value})

    assert str(caught.value).startswith(f"run.toml: privacy.{key} is ")
    assert caught.value.hint


def test_without_a_section_nothing_is_promised_and_masks_need_no_promise():
    assert not run_from({"model": {"name": "2emb"}}, {}, place="run.toml").privacy.is_private
    assert not private({"aggregation": "masked"}).privacy.is_private
    assert private().privacy.is_private


BROKEN = [
    ({"training": {"mode": "async"}}, "training.mode", "whole batch"),
    ({"training": {"mode": "ssp"}}, "training.mode", "whole batch"),
    ({"training": {"dense": "ring"}}, "training.dense", "before there is noise"),
    ({"training": {"accumulate": 2}}, "training.accumulate", "its own noise"),
    ({"training": {"compile": True}}, "training.compile", "single samples"),
    ({"data": {"shuffle": False}}, "data.shuffle", "by chance"),
    ({"optimizer": {"clip_norm": 1.0}}, "optimizer.clip_norm", "of each sample"),
    ({"optimizer": {"clip_value": 1.0}}, "optimizer.clip_value", "of each sample"),
    ({"compression": {"bits": 8}}, "compression.bits", "rounded"),
    ({"compression": {"topk": 0.1}}, "compression.topk", "rounded"),
    ({"worker": [{"precision": "bfloat16"}]}, "worker.precision", "how long"),
    ({"table": {"place": "sharded"}}, "table.place", "before there is noise"),
    (
        {
            "stage": [{"first_layer": 0, "last_layer": 1}, {"first_layer": 2, "last_layer": 3}],
            "worker": [{"name": "a"}, {"name": "b", "stage": 1}],
        },
        "stage",
        "whole gradient",
    ),
    (
        {"site": [{"name": "a", "address": "h:1"}, {"name": "b"}], "table": {"place": "servers"}},
        "site",
        "each other's samples",
    ),
]


@pytest.mark.parametrize(("sections", "key", "reason"), BROKEN, ids=[each[1] for each in BROKEN])
def test_what_would_break_the_promise_is_refused_with_the_reason_and_allowed_without_one(sections, key, reason):
    with pytest.raises(SpecError) as caught:
        private(**sections)

    assert str(caught.value).startswith(f"run.toml: {key} is ")
    assert reason in str(caught.value)
    assert caught.value.hint
    assert not private({}, **sections).privacy.is_private


def test_epsilon_is_found_by_its_last_word():
    assert dotted_key("epsilon") == "privacy.epsilon"
    assert dotted_key("clip") == "privacy.clip"
