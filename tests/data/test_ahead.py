import time

import pytest

from dovetail.data.ahead import MadeAhead


def slow(job: int) -> int:
    time.sleep(0.05)  # as from a disk: no core is needed
    return job


def test_results_come_in_the_order_of_their_jobs_however_many_make_them():
    assert list(MadeAhead(range(300), lambda job: job, ahead=3, most=7)) == list(range(300))


def test_as_many_threads_are_added_as_are_waited_for():
    made = MadeAhead(range(10_000), slow, ahead=4, most=12)
    until_s = time.monotonic() + 20
    while made.readers < 12 and time.monotonic() < until_s:
        made.take()  # takes no time: no number of threads is enough

    made.close()
    assert made.readers == 12


@pytest.mark.parametrize("readers", [1, 3])
def test_a_given_number_of_threads_stays(readers):
    made = MadeAhead(range(10_000), slow, ahead=4, readers=readers)
    for _ in range(20):
        made.take()

    made.close()
    assert made.readers == readers


def test_threads_are_added_for_who_does_not_wait_but_would_have_more_ready():
    made = MadeAhead(range(10_000), slow, ahead=4, most=12)
    until_s = time.monotonic() + 20
    made.take()
    while made.readers < 3 and time.monotonic() < until_s:
        while not made.has_next:  # other work goes on
            made.wish()
            time.sleep(0.001)
        made.take()

    made.close()
    assert made.readers >= 3
