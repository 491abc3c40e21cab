"""The record of what a private run has spent: ahead of the run, never behind it."""

import msgspec
import pytest

from dovetail.privacy.steps import PrivateSteps
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import SPENDING
from dovetail.runtime.spending import Spending, SpendingRecord

PRIVATE = PrivateSteps(
    clip=1.0, noise=2.0, samples=1000, batch=50, until_step=1000, planned_step=1000, stream="a" * 32, first_step=0
)


def steps_in(folder) -> int:
    return sum(each.steps for each in Spending.read(folder).steps)


def test_a_step_is_on_disk_before_it_is_done_and_not_far_ahead(tmp_path):
    record = SpendingRecord(tmp_path, PRIVATE)

    for step in range(200):
        record.begin(step)
        assert step < steps_in(tmp_path) <= step + 1000 // 128 + 1


def test_the_end_cuts_back_what_was_never_begun(tmp_path):
    record = SpendingRecord(tmp_path, PRIVATE)
    for step in range(100):
        record.begin(step)

    record.end(100)

    assert steps_in(tmp_path) == 100


def test_steps_that_were_begun_before_a_crash_stay_spent_and_are_not_paid_twice(tmp_path):
    before = SpendingRecord(tmp_path, PRIVATE)
    for step in range(100):
        before.begin(step)
    ahead = steps_in(tmp_path)

    after = SpendingRecord(tmp_path, PRIVATE)  # from a checkpoint of step 80
    for step in range(80, 90):
        after.begin(step)
    after.end(90)

    assert steps_in(tmp_path) == ahead >= 100


def test_another_stream_pays_for_steps_done_again(tmp_path):
    first = SpendingRecord(tmp_path, PRIVATE)
    for step in range(100):
        first.begin(step)
    first.end(100)

    other = msgspec.structs.replace(PRIVATE, stream="b" * 32, first_step=80, noise=3.0)
    second = SpendingRecord(tmp_path, other)
    for step in range(80, 120):
        second.begin(step)
    second.end(120)

    spent = {(each.noise, each.steps) for each in Spending.read(tmp_path).steps}
    assert spent == {(2.0, 100), (3.0, 40)}


def test_a_step_before_the_stream_began_is_refused(tmp_path):
    record = SpendingRecord(tmp_path, msgspec.structs.replace(PRIVATE, first_step=80))

    with pytest.raises(TrainingError, match="before its noise began at step 80"):
        record.begin(79)


def test_a_checkpoint_says_what_the_steps_up_to_it_cost(tmp_path):
    record = SpendingRecord(tmp_path, PRIVATE)
    for step in range(100):
        record.begin(step)

    assert [each.steps for each in record.at(60).steps] == [60]


def test_two_records_together_know_what_either_knows(tmp_path):
    one = Spending().reaching(PRIVATE, 40)
    other = Spending().reaching(PRIVATE, 70).reaching(msgspec.structs.replace(PRIVATE, stream="c"), 5)

    both = one.joined(other)

    assert sorted(each.steps for each in both.steps) == [5, 70]
    assert {each.stream: each for each in both.streams} == {each.stream: each for each in other.joined(one).streams}


def test_a_record_that_is_damaged_is_no_record_of_nothing(tmp_path):
    SpendingRecord(tmp_path, PRIVATE).begin(0)
    path = tmp_path / SPENDING
    path.write_bytes(path.read_bytes().replace(b'"last": 7', b'"last": 1'))

    with pytest.raises(TrainingError, match="cannot be read") as caught:
        Spending.read(tmp_path)
    assert "nobody knows what the run has spent" in caught.value.hint


def test_a_disk_that_takes_no_more_stops_the_step(tmp_path):
    record = SpendingRecord(tmp_path / "gone", PRIVATE)

    with pytest.raises(OSError, match="gone"):
        record.begin(0)
