"""A port that was drawn for a process of a run is there when the process wants it, and nobody else's."""

import socket
import sys
from contextlib import contextmanager

import pytest
import zmq

from dovetail.runtime.launch.hosts.keeper import Keeper
from dovetail.runtime.launch.hosts.protocol import AskPorts
from dovetail.runtime.private_folder import hold_port, let_go, make_private_folder, remove_private_folder

HOST = "127.0.0.1"
linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems have other rules")


@pytest.fixture
def folder(tmp_path):
    folder = make_private_folder(tmp_path)
    yield folder
    remove_private_folder(folder)


def can_bind(port):
    """Say whether another program gets a port."""
    with socket.socket() as other:
        try:
            other.bind((HOST, port))
        except OSError:
            return False
        return True


@contextmanager
def listening(port):
    """Listen as a process of a run does; afterwards nothing of it is left."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listener:
        listener.setsockopt(zmq.LINGER, 0)
        listener.bind(f"tcp://{HOST}:{port}")
        yield


@linux
def test_nobody_else_gets_it_and_the_process_does_even_the_second_time(folder):
    port = hold_port(HOST, folder)
    assert not can_bind(port)
    for _ in range(2):  # the process dies, and another takes its place
        with listening(port), socket.create_connection((HOST, port), timeout=60):
            pass
        assert not can_bind(port)


def test_ports_are_all_different(folder):
    assert len({hold_port(HOST, folder) for _ in range(50)}) == 50


@linux
def test_it_is_free_once_the_run_is_over(tmp_path):
    folder = make_private_folder(tmp_path)
    ports = [hold_port(HOST, folder) for _ in range(20)]

    remove_private_folder(folder)

    assert any(can_bind(port) for port in ports)  # one may be another's by now


@linux
def test_ports_on_another_host_are_kept_until_its_keeper_is_closed(tmp_path):
    keeper = Keeper(tmp_path / "kept", lost_s=60.0)
    ports = keeper.answer(AskPorts(address=HOST, count=20)).ports
    assert len(set(ports)) == 20
    assert not any(can_bind(port) for port in ports)

    keeper.close()

    assert any(can_bind(port) for port in ports)


@linux
def test_a_process_that_makes_many_runs_ready_holds_the_ports_of_the_last_ones(tmp_path):
    folders = [tmp_path / str(number) for number in range(40)]
    ports = [hold_port(HOST, folder) for folder in folders]

    assert not any(can_bind(port) for port in ports[-10:])
    assert any(can_bind(port) for port in ports[:8])
    for folder in folders:
        let_go(folder)


def test_a_host_that_is_not_this_one_is_an_error(folder):
    with pytest.raises(OSError, match=r"assign|known|available"):
        hold_port("192.0.2.1", folder)
