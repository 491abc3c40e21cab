"""Lines to servers: an answer, a refusal that says why, or the end of a request that nobody wants any more."""

import numpy as np
import pytest

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Forgotten, Pull, Pulled, Push, Pushed, Refresh, Refreshed, Stale
from dovetail.runtime.worker.links.servers import Abandoned, ServerConnections
from dovetail.runtime.worker.rows.keys import look_up
from dovetail.transport import Envelope, Refused
from testbed.direct_caller import DirectCaller
from tests.runtime.worker.makers import Bench


class Silent(DirectCaller):
    """A line to a server that takes requests and answers none."""

    def receive(self, timeout_s):
        return None


class Nameless(DirectCaller):
    """A line to a server that cannot read the number of a request."""

    def receive(self, timeout_s):
        envelope = super().receive(timeout_s)
        return envelope and Envelope(b"", 0, envelope.message)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("lines") / "run")
    yield bench
    bench.close()


def pull(bench, channel, wanted=lambda: True):
    lines = ServerConnections(bench.blueprint, [channel])
    return lines.pull(1, 0, [look_up(0, np.arange(3), 1)], dense=False, wanted=wanted)


def test_a_stale_request_is_abandoned(bench):
    channel = DirectCaller(lambda envelope: (Stale(generation=2), ()))

    with pytest.raises(Abandoned):
        pull(bench, channel)
    assert channel.receive(0) is None


def test_a_request_that_is_not_wanted_any_more_is_abandoned(bench):
    with pytest.raises(Abandoned):
        pull(bench, Silent(lambda envelope: (Pushed(), ())), wanted=lambda: False)


@pytest.mark.parametrize("kind", [DirectCaller, Nameless])
def test_a_refusal_names_the_server_and_the_reason(bench, kind):
    with pytest.raises(TrainingError, match="server-0 refused a request: no such table") as caught:
        pull(bench, kind(lambda envelope: (Refused("no such table"), ())))

    assert "same version" in caught.value.hint


def test_an_answer_to_another_question_is_named(bench):
    with pytest.raises(TrainingError, match="refused a request: Pushed"):
        pull(bench, DirectCaller(lambda envelope: (Pushed(), ())))


def test_who_waits_for_steps_fetches_before_them_and_again_what_they_change(bench):
    rows, asked = np.zeros((3, bench.blueprint.tables[0].width), dtype=np.float32), []

    def answer(envelope):
        asked.append(envelope.message)
        if isinstance(envelope.message, Refresh):
            return Refreshed(parked_s=0.5), (np.array([1], dtype=np.int32), rows[:1] + 7)
        return Pulled(parked_s=0.0 if envelope.message.early else 5.0, version=envelope.message.version - 1), (rows,)

    lines = ServerConnections(bench.blueprint, [DirectCaller(answer)])
    found = [
        lines.pull(1, step, [look_up(0, np.arange(3), 1)], dense=False, wanted=lambda: True).rows[0][:, 0].tolist()
        for step in (1, 2)
    ]

    assert [type(message).__name__ for message in asked] == ["Pull", "Pull", "Refresh"]
    assert [getattr(message, "early", None) for message in asked] == [False, True, None]
    assert (asked[-1].version, asked[-1].since) == (2, 1)
    assert found == [[0, 0, 0], [0, 7, 0]]


def test_a_refresh_and_a_push_name_their_pull_and_bring_its_keys_where_a_server_has_forgotten_it(bench):
    rows, asked = np.zeros((3, bench.blueprint.tables[0].width), dtype=np.float32), []
    forgets = set()

    def answer(envelope):
        message = envelope.message
        name = type(message).__name__
        asked.append((name, len(envelope.arrays)))
        if name in forgets and len(envelope.arrays) < 2 - isinstance(message, Refresh):
            return Forgotten(), ()
        if isinstance(message, Push):
            return Pushed(), ()
        if isinstance(message, Refresh):
            return Refreshed(parked_s=0.5), (np.array([1], dtype=np.int32), rows[:1] + 7)
        return Pulled(parked_s=0.0 if message.early else 5.0, version=message.version - 1), (rows,)

    lines = ServerConnections(bench.blueprint, [DirectCaller(answer)])

    def step(number):
        how = {"dense": False, "wanted": lambda: True, "keep": True}
        found = lines.pull(1, number, [look_up(0, np.arange(3), 1)], **how)
        push = Push(
            generation=1, step=number, task=0, worker="w", part=0, tables=(0,), dense=False, last=True, positions=1,
            samples=1, loss=0.0,
        )  # fmt: skip
        lines.push(push, list(zip(found.look_ups, found.rows, strict=True)), None, lambda: True)
        return found.rows[0][:, 0].tolist()

    step(1)
    assert step(2) == [0, 7, 0]
    assert asked == [("Pull", 1), ("Push", 1), ("Pull", 1), ("Refresh", 0), ("Push", 1)]

    asked.clear()
    forgets |= {"Refresh", "Push"}
    assert step(3) == [0, 7, 0]
    assert asked == [("Pull", 1), ("Refresh", 0), ("Refresh", 1), ("Push", 1), ("Push", 2)]


def test_no_two_lines_give_their_pulls_the_same_numbers(bench):
    seen = []

    def answer(envelope):
        if isinstance(envelope.message, Pull):
            seen.append(envelope.message.number)
        return Pulled(version=envelope.message.version), (np.zeros((1, bench.blueprint.tables[0].width), np.float32),)

    for _ in range(20):
        lines = ServerConnections(bench.blueprint, [DirectCaller(answer)])
        for _ in range(2):
            lines.pull(1, 0, [look_up(0, np.arange(1), 1)], dense=False, wanted=lambda: True, keep=True)

    assert len(set(seen)) == 40
