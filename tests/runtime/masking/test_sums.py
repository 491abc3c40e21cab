"""Masked sums by themselves: numbers, masks, and what a server makes of both."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.runtime.coordinator.dense_keepers import FORMING_S, MasksWaitForAll
from dovetail.runtime.coordinator.membership import Roster, worker_of
from dovetail.runtime.coordinator.work import BeginAgain, Fail
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.masking.fixed_point import FixedPoint, loss_of, loss_words
from dovetail.runtime.masking.masks import MaskKeys
from dovetail.runtime.messages import Agree, Hello, MaskedPush, MaskKey
from dovetail.runtime.server.masked_sums import MaskedSums
from dovetail.spec.run import RunWorker
from dovetail.transport import KeyRing, make_keys

# -- fixed point -----------------------------------------------------------------------------------------------------


@settings(deadline=None)  # a kernel is compiled
@given(
    reach=st.floats(1e-6, 1e9),
    parts=st.lists(st.lists(st.floats(-0.9375, 0.9375, width=32), min_size=5, max_size=5), min_size=1, max_size=9),
)
def test_sums_are_those_of_the_numbers_to_half_a_unit_a_member(reach, parts):
    fixed = FixedPoint(reach, len(parts))
    numbers = [np.array(part, dtype=np.float64) * reach for part in parts]
    total = np.zeros(5, dtype=np.uint32)

    cut = sum(fixed.add_to(total, part.astype(np.float32)) for part in numbers)

    exact = sum(part.astype(np.float32).astype(np.float64) for part in numbers)
    allowed = len(parts) * fixed.unit * 0.5000001 + np.abs(exact) * 2.0**-23
    assert np.all(np.abs(fixed.decode(total) - exact) <= allowed)
    assert cut == 0


@pytest.mark.parametrize("members", [1, 2, 3, 7, 16, 100, 1024])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_sum_never_overflows_whatever_the_members_bring(members, sign):
    fixed, total = FixedPoint(2.0, members), np.zeros(3, dtype=np.uint32)

    cut = sum(
        fixed.add_to(total, np.array([sign * 1e30, sign * 2.0, sign * 1e-30], np.float32)) for _ in range(members)
    )

    np.testing.assert_allclose(fixed.decode(total), [2.0 * sign * members, 2.0 * sign * members, 0.0], rtol=1e-6)
    assert cut == members
    assert fixed.levels * members <= 2**31 - 1


def test_what_is_no_number_is_an_error_and_too_many_members_are():
    fixed = FixedPoint(1.0, 2)
    for wrong in (np.nan, np.inf, -np.inf):
        with pytest.raises(TrainingError, match="no number, or infinite"):
            fixed.add_to(np.zeros(2, dtype=np.uint32), np.array([0.0, wrong], dtype=np.float32))
    for members in (0, 1025):
        with pytest.raises(TrainingError, match="by 32 bits"):
            FixedPoint(1.0, members)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50))
def test_losses_add_up(losses):
    with np.errstate(over="ignore"):
        total = sum((loss_words(loss) for loss in losses), np.zeros(4, dtype=np.uint32))

    assert loss_of(total, len(losses)) == pytest.approx(sum(losses), abs=len(losses) * 2.0**-20, rel=1e-12)


# -- masks -----------------------------------------------------------------------------------------------------------


def workers(folder, count, run="run-1"):
    names = [f"worker-{number}" for number in range(count)]
    for name in names:
        if not (folder / f"{name}.public").exists():
            make_keys(folder, name)
    found = [MaskKeys(name, run, KeyRing(folder)) for name in names]
    return found, tuple(MaskKey(name=name, public=each.public) for name, each in zip(names, found, strict=True))


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_masks_cancel_over_all_members_and_over_no_fewer(tmp_path, count):
    keys, members = workers(tmp_path, count)
    for each in keys:
        each.begin(3, 17, members)
    masks = [each.mask(members, 1, 4000) for each in keys]

    assert not sum(masks[1:], masks[0].copy()).any()
    for size in range(1, count):
        for some in itertools.combinations(masks, size):
            total = sum(some[1:], some[0].copy())
            # As good as random: every word's bits are about half ones, in every subset that lacks somebody.
            ones = np.unpackbits(total.view(np.uint8)).mean()
            assert abs(ones - 0.5) < 0.01
            assert len(np.unique(total)) > 3990


def test_no_two_attempts_steps_servers_runs_or_processes_have_a_mask_in_common(tmp_path):
    found = []
    for run in ("run-1", "run-2"):
        keys, members = workers(tmp_path, 2, run)
        for generation, step in ((1, 0), (1, 1), (2, 1)):
            keys[0].begin(generation, step, members)
            found += [keys[0].mask(members, server, 50).tobytes() for server in (0, 1)]
    again, members = workers(tmp_path, 2)  # other processes of the same names
    again[0].begin(1, 0, members)
    found.append(again[0].mask(members, 0, 50).tobytes())

    assert len(set(found)) == len(found) == 13


def test_nobody_masks_twice_in_an_attempt_alone_or_beside_a_stranger(tmp_path):
    keys, members = workers(tmp_path, 3)
    one = keys[0]
    one.begin(2, 5, members)
    for generation, step in ((2, 5), (2, 4), (1, 9)):
        with pytest.raises(TrainingError, match="were used already"):
            one.begin(generation, step, members)
    with pytest.raises(TrainingError, match="with nobody"):
        one.begin(2, 6, members[:1])
    with pytest.raises(TrainingError, match="each there once"):
        one.begin(2, 6, (*members[:2], members[1]))
    with pytest.raises(TrainingError, match="as it said itself"):
        one.begin(2, 6, (MaskKey(name="worker-0", public="00" * 32), *members[1:]))
    one.begin(2, 6, members[:2])


def test_who_hands_out_keys_of_its_own_learns_no_mask(tmp_path):
    # The coordinator stands between two workers with keys that it drew itself.
    keys, members = workers(tmp_path / "keys", 2)
    liars, lies = workers(tmp_path / "other", 2)
    keys[0].begin(1, 0, (members[0], lies[1]))
    liars[1].begin(1, 0, (members[0], lies[1]))
    between = keys[0].mask((members[0], lies[1]), 0, 100)
    guessed = liars[1].mask((members[0], lies[1]), 0, 100)

    assert (between + guessed).any()  # they know different secrets: nothing cancels, and nothing is learnt


def test_a_key_that_is_none_is_an_error(tmp_path):
    keys, members = workers(tmp_path, 2)
    wrong = (members[0], MaskKey(name="worker-1", public="zz"))
    keys[0].begin(1, 0, wrong)

    with pytest.raises(TrainingError, match="was given no key of worker-1"):
        keys[0].mask(wrong, 0, 10)


# -- the server ------------------------------------------------------------------------------------------------------

NAMES = ("worker-0", "worker-1", "worker-2")
WIDTHS = (2, 3)


def agree(sums, name, keys, members=NAMES, step=4):
    message = Agree(generation=1, step=step, worker=f"{name}/17", members=members)
    return sums.agree(message, [np.array(each, dtype=np.int64) for each in keys], name)


def push(sums, name, words, members=NAMES, step=4, samples=5):
    task = NAMES.index(name)
    message = MaskedPush(
        generation=1, step=step, task=task, worker=f"{name}/17", members=members, positions=6, samples=samples
    )
    return sums.push(message, words.view(np.int32))


def test_a_server_agrees_on_all_rows_and_knows_the_sum_with_the_last_member(tmp_path):
    keys, members = workers(tmp_path, 3)
    sums, random = MaskedSums(WIDTHS, 4, reach=8.0), np.random.default_rng(0)
    asked = {"worker-0": ([5, 9], []), "worker-1": ([9, 700], [1]), "worker-2": ([], [1, 3])}

    assert agree(sums, "worker-0", asked["worker-0"]) == []
    assert agree(sums, "worker-0", asked["worker-0"]) == []  # it asks again: a line may have broken
    assert agree(sums, "worker-2", asked["worker-2"]) == []
    answers = agree(sums, "worker-1", asked["worker-1"])
    assert [name for name, _ in answers] == ["worker-0", "worker-0", "worker-2", "worker-1"]
    for _, agreed in answers:
        assert [each.tolist() for each in agreed] == [[5, 9, 700], [1, 3]]
    assert [each.tolist() for _, agreed in agree(sums, "worker-2", asked["worker-2"]) for each in agreed] == [
        [5, 9, 700],
        [1, 3],
    ]

    fixed, brought = FixedPoint(8.0, 3), {}
    for place, name in enumerate(NAMES):
        numbers = random.normal(size=3 * 2 + 2 * 3 + 4).astype(np.float32)
        keys[place].begin(1, 4, members)
        words = keys[place].mask(members, 0, len(numbers) + 4)
        fixed.add_to(words[:-4], numbers)
        words[-4:] += loss_words(10.0 + place)
        brought[name] = numbers
        summed = push(sums, name, words)
        held = [np.frombuffer(memoryview(sums._step.total), np.uint32)] if sums._step else []
        for each in held:  # what the server has by now says nothing of anybody
            assert not np.isin(each[:16], np.concatenate([fixed_words(fixed, n) for n in brought.values()])).any()
    total = sum(each.astype(np.float64) for each in brought.values())

    assert summed.loss == pytest.approx(33.0, abs=1e-5)
    assert [each.samples for each in summed.pushes] == [5, 5, 5]
    (table, rows, values), (other, more, others) = summed.part.rows
    assert (table, rows.tolist(), other, more.tolist()) == (0, [5, 9, 700], 1, [1, 3])
    found = np.concatenate([values.ravel(), others.ravel(), summed.part.dense])
    np.testing.assert_allclose(found, total, atol=3 * fixed.unit)


def fixed_words(fixed, numbers):
    words = np.zeros(len(numbers), dtype=np.uint32)
    fixed.add_to(words, numbers)
    return words


def test_what_comes_twice_counts_once_and_what_does_not_fit_is_refused():
    sums = MaskedSums((), 2, reach=1.0)
    with pytest.raises(TrainingError, match="nobody agreed on"):
        push(sums, "worker-0", np.zeros(6, dtype=np.uint32))
    for name in NAMES[:2]:
        agree(sums, name, ())
    with pytest.raises(TrainingError, match="under masks"):
        push(sums, "worker-0", np.zeros(6, dtype=np.uint32))  # not all have asked yet
    with pytest.raises(TrainingError, match="with 2 workers, others are at 4 with 3"):
        agree(sums, "worker-2", (), members=NAMES[1:])
    with pytest.raises(TrainingError, match="is at step 5"):
        agree(sums, "worker-2", (), step=5)
    with pytest.raises(TrainingError, match="keys of 1 tables"):
        agree(sums, "worker-2", ([3],))
    agree(sums, "worker-2", ())
    one = np.array([1, 2, *loss_words(1.0)], dtype=np.uint32)
    with pytest.raises(TrainingError, match="under masks"):
        push(sums, "worker-0", one[:-1])
    assert push(sums, "worker-0", one) is None
    assert push(sums, "worker-0", one) is None
    assert push(sums, "worker-1", one) is None
    summed = push(sums, "worker-2", one)
    fixed = FixedPoint(1.0, 3)
    np.testing.assert_allclose(summed.part.dense, [3 * fixed.unit, 6 * fixed.unit])
    assert summed.loss == 3.0


# -- the coordinator -------------------------------------------------------------------------------------------------


def test_a_lost_worker_costs_the_step_and_one_that_stays_alone_ends_the_run():
    roster = Roster(server_names=["server-0"], settings={})
    keeper = MasksWaitForAll(roster)
    hello = Hello(role="worker", name="worker-0", process_id=1, mask_key="ab")
    roster.workers["worker-0"] = worker_of(hello, b"worker-0/1", 0.0, 10.0, RunWorker())

    assert roster.workers["worker-0"].mask_key == "ab"
    assert keeper.everyone
    assert keeper.fewest == 2
    assert isinstance(keeper.drop("worker-1"), BeginAgain)
    assert keeper.tick(5.0) is None
    assert keeper.tick(5.0 + FORMING_S) is None
    ended = keeper.tick(5.1 + FORMING_S)
    assert isinstance(ended, Fail)
    assert "there was worker-0" in ended.error
    roster.workers["worker-1"] = roster.workers["worker-0"]
    assert keeper.tick(6.0 + FORMING_S) is None
    del roster.workers["worker-1"]
    assert keeper.tick(7.0 + FORMING_S) is None
