"""Links without a codec are measured ever less often."""

from dovetail.codecs.chooser import WINDOW
from dovetail.runtime.worker.links.compression import FIRST_WINDOWS, MOST_WINDOWS, MeasuringBackoff


def measured(rest, tasks, *, is_quiet):
    """Return how many of some tasks are measured."""
    count = 0
    for _ in range(tasks):
        count += not rest.is_now
        rest.task_done(is_quiet=is_quiet)
    return count


def test_quiet_links_are_measured_ever_less_but_never_let_go():
    rest = MeasuringBackoff()
    assert measured(rest, 2 * WINDOW, is_quiet=True) == 2 * WINDOW
    measured(rest, 100 * WINDOW, is_quiet=True)

    cycle = (MOST_WINDOWS + 1) * WINDOW
    assert measured(rest, 10 * cycle, is_quiet=True) == 10 * WINDOW


def test_links_that_need_something_are_always_measured():
    rest = MeasuringBackoff()

    assert measured(rest, 50 * WINDOW, is_quiet=False) == 50 * WINDOW


def test_after_a_codec_was_on_rests_are_short_again():
    rest = MeasuringBackoff()
    measured(rest, 200 * WINDOW, is_quiet=True)
    while rest.is_now:
        rest.task_done(is_quiet=True)
    rest.task_done(is_quiet=False)

    assert measured(rest, (2 + FIRST_WINDOWS) * WINDOW, is_quiet=True) == 2 * WINDOW
    assert not rest.is_now


def test_a_task_is_as_long_as_from_the_end_of_the_one_before():
    rest, now = MeasuringBackoff(), iter([3.0, 10.0])
    rest.clock = now.__next__
    rest.task_done(is_quiet=True)

    assert rest.task_done(is_quiet=True) == 7.0
