"""Which of the data are a site's: every sample is one site's, in the batches that one site would have."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import SpecError
from dovetail.runtime.blueprint import portions_of
from dovetail.spec.run import Run, RunModel, with_settings
from dovetail.spec.run_sections import RunExchange, RunSite, portions


def sites(*shares: int) -> list[RunSite]:
    return [RunSite(name=f"s{n}", share=share, address=None if n else "x:1") for n, share in enumerate(shares)]


@settings(max_examples=60, deadline=None)
@given(shares=st.lists(st.integers(1, 3), min_size=2, max_size=4), times=st.integers(1, 5), samples=st.integers(1, 300))
def test_every_position_is_read_once_and_in_its_own_batch(shares: list[int], times: int, samples: int) -> None:
    batch = times * sum(shares)
    seen = []
    for portion in portions_of(sites(*shares), samples, batch):
        own = portion.own_samples
        for step in range(portion.steps if own else 0):
            first, last = step * portion.own_batch, min((step + 1) * portion.own_batch, own)
            positions = [p for begin, end in portion.places(first, last) for p in range(begin, end)]
            assert {position // batch for position in positions} == {step}
            assert len(positions) == last - first == portion.samples_after(step + 1) - portion.samples_after(step)
            seen += positions
    assert sorted(seen) == list(range(samples))


def test_a_range_that_ends_in_another_batch_is_cut_where_the_batch_ends() -> None:
    _, second = portions_of(sites(1, 1), 25, 10)
    assert second.places(3, 12) == [(8, 10), (15, 20), (22, 24)]


def test_a_batch_that_sites_cannot_share_is_refused_with_one_that_they_can() -> None:
    with pytest.raises(SpecError, match="100") as caught:
        portions(sites(1, 2), 100)
    assert "99" in caught.value.hint


@pytest.mark.parametrize(
    ("key", "value"), [("training.mode", "async"), ("training.dense", "ring"), ("table.place", "device")]
)
def test_what_sites_cannot_do_is_refused_by_its_key(key: str, value: str) -> None:
    run = Run(model=RunModel(name="ctr-dnn"), sites=sites(1, 1))

    with pytest.raises(SpecError, match=value) as caught:
        with_settings(run, {key: value}, place="run.toml")
    assert caught.value.key == key


def test_a_first_site_without_an_address_and_an_unknown_name_are_refused() -> None:
    with pytest.raises(SpecError, match="no address"):
        Run(model=RunModel(name="ctr-dnn"), sites=[RunSite(name="a"), RunSite(name="b")])
    with pytest.raises(SpecError, match="s7"):
        Run(model=RunModel(name="ctr-dnn"), sites=sites(1, 1), exchange=RunExchange(here="s7"))
