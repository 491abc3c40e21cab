from __future__ import annotations

from dovetail.transport.rate_limited_log import MOST_KNOWN, RateLimitedLog


def test_the_same_thing_is_written_once_in_a_while():
    lines: list[str] = []
    log = RateLimitedLog(lines.append, quiet_s=1000.0)
    for who in ("a", "a", "b"):
        log.say("knock", who, f"{who} knocks")
    log.say("shout", "a", "a shouts")

    assert lines == ["a knocks", "b knocks", "a shouts"]
    assert log.counts == {"knock": 3, "shout": 1}


def test_what_was_left_out_is_counted_in_the_next_line():
    lines: list[str] = []
    log = RateLimitedLog(lines.append, quiet_s=1000.0)
    for _ in range(3):
        log.say("knock", "a", "a knocks")
    log._quiet_s = 0.0
    log.say("knock", "a", "a knocks")

    assert lines == ["a knocks", "a knocks (and 2 more like it before)"]


def test_many_names_do_not_fill_the_memory():
    log = RateLimitedLog(lambda text: None)
    for number in range(3 * MOST_KNOWN):
        log.say("knock", number, "")

    assert len(log._written_s) <= MOST_KNOWN


def test_a_log_that_fails_stops_nobody():
    def fail(text: str) -> None:
        raise BrokenPipeError

    RateLimitedLog(fail).say("knock", "a", "a knocks")


def test_whoever_makes_up_something_new_each_time_does_not_fill_the_disk():
    lines: list[str] = []
    log = RateLimitedLog(lines.append)
    for number in range(5000):
        log.say("bad message", number, f"refused {number}")
    log.say("other", 1, "another kind is still written")

    assert len(lines) == 101
    assert log.counts["bad message"] == 5000
