"""How long bytes were on their way, by the kernel's counts."""

import sys
import time
from contextlib import closing

import numpy as np
import pytest

from dovetail.transport.caller import Flow, carried, flow_seconds
from tests.transport.makers import Ask, Told

BYTES = 2_000_000


@pytest.mark.parametrize(
    ("looks", "seconds"),
    [
        ([(0.0, 5), (1.0, 5), (2.0, 9), (3.0, 20), (9.0, 20)], 2.0),  # from the last without to the first with all
        ([(0.0, 5), (9.0, 20)], 9.0),
        ([(0.0, 5), (9.0, 5)], None),  # nothing went this way
        ([], None),
    ],
)
def test_a_transfer_is_between_the_last_look_at_nothing_and_the_first_at_all(looks, seconds):
    assert flow_seconds(looks) == seconds


def test_what_is_no_connection_tells_nothing(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        assert carried(file.fileno()) is None
    assert carried(-1) is None
    assert carried(1 << 20) is None
    assert Flow(-1, "up").seconds() is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts")
def test_a_peer_that_answers_late_is_not_in_the_time_of_a_transfer(site):
    with closing(site.listener("tcp://127.0.0.1:*")) as listener, closing(site.caller(listener.addresses[0])) as caller:
        caller.ask(Ask())
        listener.reply(listener.receive(60), Told())
        connection = caller.receive(60).connection

        flow = Flow(connection, "up")
        caller.ask(Ask(), [np.zeros(BYTES, dtype=np.uint8)])
        envelope = listener.receive(60)
        count, last_s = -1, 0.0
        while count < 0 or time.perf_counter() < last_s + 0.3:  # all has arrived, and the peer thinks
            flow.look()
            now = flow._looks[-1][1]
            if now != count:
                count, last_s = now, time.perf_counter()
            time.sleep(0.001)
        listener.reply(envelope, Told())
        assert caller.receive(60) is not None
        flow.look()
        replied_s = time.perf_counter()

    assert 0 < flow.seconds() <= replied_s - flow._looks[0][0] - 0.2


def test_a_letter_through_a_unix_socket_says_nothing_of_flows(site):
    with closing(site.listener()) as listener, closing(site.caller(site.ipc)) as caller:
        caller.ask(Ask())
        listener.reply(listener.receive(60), Told())

        assert Flow(caller.receive(60).connection, "down").seconds() is None
