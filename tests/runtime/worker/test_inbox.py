"""Messages of the coordinator in any order: every position of a task is computed once, nothing of an old generation."""

from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.runtime.messages import Close, Extend, GaveBack, GiveBack, More, Recall, Reset, Stop
from dovetail.runtime.worker.tasks.inbox import Inbox, News, TaskProgress
from dovetail.runtime.worker.tasks.task import Task, divide
from tests.runtime.worker.makers import assign


def make_inbox(most: int = 10, generation: int = 1, sample_s: float = 0.0) -> Inbox:
    inbox = Inbox(lambda: most)
    inbox.throughput.add(samples=1, compute_s=sample_s, fetch_s=sample_s * most)
    inbox.handle(Reset(generation=generation))
    return inbox


def ranges_of(news: News) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in news.micro_batches]


def extend(first: int, last: int, *, generation: int = 1, step: int = 0, task: int = 0) -> Extend:
    return Extend(generation=generation, step=step, task=task, first=first, last=last)


def close(*, generation: int = 1, step: int = 0, task: int = 0) -> Close:
    return Close(generation=generation, step=step, task=task)


def recall(*, generation: int = 1, step: int = 0, task: int = 0) -> Recall:
    return Recall(generation=generation, step=step, task=task)


def give_back(samples_per_s: float, *, fixed_s: float = 0.0, generation: int = 1, task: int = 0) -> GiveBack:
    return GiveBack(generation=generation, step=0, task=task, samples_per_s=samples_per_s, fixed_s=fixed_s)


def test_a_closed_task_is_divided_evenly_into_micro_batches_that_fit():
    news = make_inbox(most=10).handle(assign((0, 25)))

    assert ranges_of(news) == [(0, 8), (8, 16), (16, 25)]
    assert [each.number for each in news.micro_batches] == [0, 1, 2]


def test_an_open_task_begins_with_a_quarter_of_a_micro_batch():
    news = make_inbox(most=12).handle(assign((0, 27), (50, 55), is_open=True))

    assert ranges_of(news) == [(0, 3), (3, 15), (15, 27), (50, 55)]


@pytest.mark.parametrize(
    ("whole", "most", "smaller_first", "pieces"),
    [
        ((0, 0), 5, None, []),
        ((3, 4), 5, None, [(3, 4)]),
        ((0, 10), 5, 2, [(0, 2), (2, 6), (6, 10)]),
        ((0, 2), 5, 2, [(0, 2)]),
        ((0, 4), 3, 3, [(0, 2), (2, 4)]),
    ],
)
def test_a_range_is_divided_without_gaps(whole, most, smaller_first, pieces):
    assert list(divide(*whole, most, smaller_first=smaller_first)) == pieces


def test_an_open_task_without_work_asks_at_once_and_only_once():
    inbox = make_inbox()
    news = inbox.handle(assign(is_open=True, step=4, task=2))

    assert news == News(more=More(generation=1, step=4, task=2))
    (piece,) = inbox.handle(extend(0, 3, step=4, task=2)).micro_batches
    assert inbox.should_ask_for_more(piece)  # the extension answered the first question
    assert not inbox.should_ask_for_more(piece)


def test_a_closed_task_without_work_is_whole_from_the_start():
    inbox = make_inbox()

    assert inbox.handle(assign()).may_be_whole
    assert inbox.next_whole() is not None


def test_more_is_asked_for_before_the_last_known_micro_batch_and_not_once_closed():
    inbox = make_inbox(most=4)
    first, *_ = news = inbox.handle(assign((0, 9), is_open=True)).micro_batches
    assert len(news) == 3
    task = first.task

    assert [inbox.should_ask_for_more(first), inbox.computed(task)] == [False, TaskProgress.GOES_ON]
    inbox.computed(task)
    inbox.handle(close())
    assert not inbox.should_ask_for_more(news[-1])
    assert inbox.is_last(task)
    assert inbox.computed(task) is TaskProgress.WHOLE


def test_a_task_that_ran_out_becomes_whole_when_it_is_closed():
    inbox = make_inbox()
    (only,) = inbox.handle(assign((0, 2), is_open=True)).micro_batches

    assert inbox.computed(only.task) is TaskProgress.RAN_OUT
    assert inbox.next_whole() is None
    assert inbox.handle(close()).may_be_whole
    assert inbox.next_whole() is only.task
    assert inbox.take(only.task)
    assert not inbox.take(only.task)
    assert inbox.next_whole() is None


def test_a_task_of_a_later_step_waits_for_the_earlier_one():
    inbox = make_inbox()
    (early,) = inbox.handle(assign((0, 2), step=3, is_open=True)).micro_batches
    inbox.handle(assign(step=4))

    assert inbox.next_whole() is None
    inbox.computed(early.task)
    inbox.handle(close(step=3))
    assert inbox.next_whole() is early.task
    inbox.take(early.task)
    assert inbox.next_whole().assign.step == 4


def test_a_reset_to_the_same_generation_still_throws_work_away():
    inbox = make_inbox()
    (old,) = inbox.handle(assign((0, 2))).micro_batches
    inbox.handle(Reset(generation=1))
    (new,) = inbox.handle(assign((0, 2))).micro_batches

    assert not inbox.is_wanted(old.task)
    assert inbox.is_wanted(new.task)
    assert not inbox.take(old.task)
    assert inbox.take(new.task)


def test_a_task_that_was_recalled_is_wanted_again_when_it_is_given_out_again():
    inbox = make_inbox()
    (old,) = inbox.handle(assign((0, 2))).micro_batches
    inbox.handle(recall())
    assert not inbox.is_wanted(old.task)
    (new,) = inbox.handle(assign((0, 2))).micro_batches

    assert inbox.is_wanted(new.task)


@pytest.mark.parametrize(
    "message",
    [
        assign((5, 6), generation=0, task=7), extend(5, 6, generation=0), close(generation=2), recall(generation=0),
        extend(5, 6, task=9), close(step=9), recall(task=9), Stop(),
    ],
)  # fmt: skip
def test_messages_of_another_generation_or_task_change_nothing(message):
    inbox = make_inbox()
    (only,) = inbox.handle(assign((0, 2), is_open=True)).micro_batches
    before = repr(only.task)

    assert inbox.handle(message) == News()
    assert repr(only.task) == before
    assert inbox.is_wanted(only.task)


def test_what_is_not_begun_is_given_back_as_far_as_another_ends_it_sooner():
    inbox = make_inbox(most=8, sample_s=1.0)
    first, *others = inbox.handle(assign((0, 34), is_open=True)).micro_batches  # 2 + 8 + 8 + 8 + 8
    assert inbox.begins(first)
    assert inbox.begins(others[0])

    news = inbox.handle(give_back(1.0))  # 12 samples each would be even, which is one micro-batch

    assert news.answer == GaveBack(generation=1, step=0, task=0, ranges=((26, 34),))
    assert first.task.num_positions == 26
    assert not inbox.begins(others[-1])
    assert inbox.begins(others[1])
    assert not inbox.should_ask_for_more(others[1])
    assert inbox.handle(extend(50, 55)).micro_batches[0].number == 5  # no number stands for two
    news = inbox.handle(give_back(1e9))
    assert news.answer.ranges == ((18, 26), (50, 55))
    assert news.more == More(generation=1, step=0, task=0)  # nothing is left to begin
    assert inbox.handle(give_back(1e9)).answer.ranges == ()
    assert [inbox.computed(first.task) for _ in range(3)] == [
        TaskProgress.GOES_ON,
        TaskProgress.GOES_ON,
        TaskProgress.RAN_OUT,
    ]


@pytest.mark.parametrize("message", [give_back(0.01), give_back(1e9, fixed_s=1e9), give_back(1e9, task=7)])
def test_nothing_is_given_back_to_one_who_would_be_later_nor_of_a_task_that_is_not_here(message):
    inbox = make_inbox(most=8, sample_s=1.0)
    first, *_ = inbox.handle(assign((0, 34), is_open=True)).micro_batches
    inbox.begins(first)

    assert inbox.handle(message) == News(answer=GaveBack(generation=1, step=0, task=message.task))
    assert inbox.handle(give_back(1e9, generation=0)) == News()  # of another generation: nobody is answered


def test_the_first_micro_batch_stays_where_it_is():
    inbox = make_inbox(most=8, sample_s=1.0)
    first, *_ = inbox.handle(assign((0, 34), is_open=True)).micro_batches

    assert inbox.handle(give_back(1e9)).answer.ranges == ((10, 18), (18, 26), (26, 34))
    assert inbox.handle(give_back(1e9)).answer.ranges == ()  # of 8 samples one micro-batch is no part
    assert inbox.begins(first)


@pytest.mark.parametrize(("fetch_s", "parts"), [(0.0, [256, 279, 279, 279]), (10.0, [256, 837])])
def test_an_open_task_that_takes_long_is_cut_small_where_that_costs_little(fetch_s, parts):
    inbox = Inbox(lambda: 1024)
    inbox.throughput.add(samples=1, compute_s=0.01, fetch_s=fetch_s)
    inbox.handle(Reset(generation=1))

    assert [last - first for first, last in ranges_of(inbox.handle(assign((0, 1093), is_open=True)))] == parts


@dataclass
class Expected:
    """A task as the coordinator knows it."""

    positions: list[int] = field(default_factory=list)
    closed: bool = False


class Bout:
    """A coordinator that keeps its own books, and a worker that computes in order, one micro-batch at a time."""

    def __init__(self, most: int) -> None:
        self.inbox = make_inbox(most, sample_s=1.0)
        self.generation = 1
        self.given: dict[tuple[int, int], Expected] = {}
        self.next_position = 0
        self.waiting: deque = deque()
        self.computed: dict[int, tuple[Task, list[int]]] = {}
        self.finished: list[tuple[Expected, list[int]]] = []
        self.asked: Counter = Counter()

    def tell(self, message) -> None:
        news = self.inbox.handle(message)
        if news.answer is not None:
            taken = {at for first, last in news.answer.ranges for at in range(first, last)}
            expected = self.given.get((message.step, message.task), Expected())
            assert taken <= set(expected.positions)
            expected.positions = [at for at in expected.positions if at not in taken]
        self.waiting.extend(news.micro_batches)
        if news.more is not None:
            self.asked[news.more.step, news.more.task] += 1
        if news.may_be_whole:
            self.finish()

    def positions(self, count: int) -> tuple[int, int]:
        first = self.next_position
        self.next_position += count
        return first, self.next_position

    def give(self, key, counts, is_open) -> None:
        if key in self.given:
            return
        ranges = [self.positions(count) for count in counts]
        expected = Expected([at for first, last in ranges for at in range(first, last)], closed=not is_open)
        self.given[key] = expected
        step, task = key
        self.tell(assign(*ranges, generation=self.generation, step=step, task=task, is_open=is_open))

    def extend(self, key, count, generation) -> None:
        first, last = self.positions(count)
        if generation == self.generation and key in self.given and not self.given[key].closed:
            self.given[key].positions += range(first, last)
        elif generation == self.generation and key in self.given:
            return  # no coordinator gives more to a task that it closed
        self.tell(extend(first, last, generation=generation, step=key[0], task=key[1]))

    def close(self, key, generation) -> None:
        if generation == self.generation and key in self.given:
            self.given[key].closed = True
        self.tell(close(generation=generation, step=key[0], task=key[1]))

    def give_back(self, key, rate, generation) -> None:
        message = GiveBack(generation=generation, step=key[0], task=key[1], samples_per_s=rate, fixed_s=0.0)
        self.tell(message)

    def recall(self, key, generation) -> None:
        if generation == self.generation:
            self.given.pop(key, None)
        self.tell(recall(generation=generation, step=key[0], task=key[1]))

    def reset(self, ahead) -> None:
        self.generation += ahead
        self.given.clear()
        self.tell(Reset(generation=self.generation))

    def work(self, count) -> None:
        for _ in range(min(count, len(self.waiting))):
            each = self.waiting.popleft()
            if not self.inbox.is_wanted(each.task):
                continue
            if not self.inbox.begins(each):
                self.finish()
                continue
            assert each.task.assign.generation == self.generation
            self.inbox.should_ask_for_more(each)
            self.computed.setdefault(id(each.task), (each.task, []))[1].extend(range(each.first, each.last))
            progress = self.inbox.computed(each.task)
            if progress is TaskProgress.WHOLE and self.inbox.take(each.task):
                self.note(each.task)
            elif progress is TaskProgress.RAN_OUT:
                assert each.task.asked_for_more
                self.finish()

    def finish(self) -> None:
        while (task := self.inbox.next_whole()) is not None:
            assert self.inbox.take(task)
            self.note(task)

    def note(self, task) -> None:
        key = (task.assign.step, task.assign.task)
        self.finished.append((self.given.pop(key), self.computed.pop(id(task), (task, []))[1]))


KEYS = st.tuples(st.integers(0, 2), st.integers(0, 1))
OLD = st.integers(0, 2)
ACTS = st.one_of(
    st.tuples(st.just("give"), KEYS, st.lists(st.integers(0, 30), max_size=3), st.booleans()),
    st.tuples(st.just("extend"), KEYS, st.integers(1, 25), OLD),
    st.tuples(st.just("close"), KEYS, OLD),
    st.tuples(st.just("recall"), KEYS, OLD),
    st.tuples(st.just("give_back"), KEYS, st.sampled_from([0.1, 1.0, 10.0]), OLD),
    st.tuples(st.just("reset"), st.integers(0, 2)),
    st.tuples(st.just("work"), st.integers(1, 6)),
    st.tuples(st.just("work"), st.integers(1, 6)),
)


@settings(max_examples=400, deadline=None)
@given(most=st.integers(1, 12), acts=st.lists(ACTS, max_size=40))
def test_in_any_order_every_position_is_computed_once_and_nothing_old(most, acts):
    bout = Bout(most)
    for name, *how in acts:
        if name in ("extend", "close", "recall", "give_back"):
            how[-1] = bout.generation - how[-1]  # mostly of now, sometimes of an old generation
        getattr(bout, name)(*how)
    left = list(bout.given.items())
    for key, _ in left:
        bout.close(key, bout.generation)
    bout.work(len(bout.waiting))
    bout.finish()

    assert bout.given == {}
    assert {id(expected) for _, expected in left} <= {id(expected) for expected, _ in bout.finished}
    for expected, computed in bout.finished:
        assert expected.closed
        assert computed == expected.positions
