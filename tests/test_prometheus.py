"""Prometheus' text format, as its own reader reads it."""

import math

from prometheus_client.parser import text_string_to_metric_families

from dovetail.prometheus import counter, gauge, page_of


def test_figures_are_read_back_by_prometheus_own_reader() -> None:
    text = page_of(
        [gauge("a", "Some.", [({"job": 'a"b\\c\nd'}, 1.5), ({}, math.inf)]), counter("b_total", "More.", [({}, 7)])]
    )

    families = list(text_string_to_metric_families(text))

    assert [(family.name, family.type) for family in families] == [("a", "gauge"), ("b", "counter")]
    assert [(each.labels, each.value) for each in families[0].samples] == [({"job": 'a"b\\c\nd'}, 1.5), ({}, math.inf)]
    assert families[1].samples[0].value == 7


def test_numbers_that_are_none_have_prometheus_words() -> None:
    lines = page_of([gauge("a", "Some.", [({}, math.nan), ({}, -math.inf)])]).splitlines()

    assert lines[2:] == ["a NaN", "a -Inf"]
