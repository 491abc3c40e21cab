"""The keeper of processes on another host, and who goes where: without a network."""

import socket
import stat
import subprocess
import sys
import threading
from contextlib import closing

import psutil
import pytest

from dovetail.errors import PlanError
from dovetail.runtime.launch.hosts.daemon import _answer_all, folder_of
from dovetail.runtime.launch.hosts.keeper import Keeper
from dovetail.runtime.launch.hosts.protocol import (
    LENGTH_BYTES,
    MOST_BYTES,
    AskMissing,
    AskPorts,
    AskStates,
    Bring,
    CloseKeeper,
    Fetch,
    FetchedFiles,
    Fine,
    FramedSocket,
    HostFacts,
    MissingPaths,
    Ports,
    ProcessState,
    ProcessStates,
    RequestRefused,
    Signal,
    StartProcess,
    decode_answer,
    encode,
    framed,
    length_of,
)
from dovetail.runtime.launch.hosts.shipped_code import own_code, read_probe
from dovetail.runtime.launch.hosts.shipped_files import data_paths
from dovetail.runtime.prepare.placement import UnitPlacement
from dovetail.spec.files import read_struct
from dovetail.spec.hosts import Host, HostsFile
from dovetail.spec.run import RunWorker
from tests.runtime.runs import make_run
from tests.waiting import wait_until


@pytest.fixture
def keeper(tmp_path):
    keeper = Keeper(tmp_path / "keeper", lost_s=60.0)
    yield keeper
    keeper.close()


def has_ended(process_id):
    try:
        return psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE  # nobody may be there to bury it
    except psutil.NoSuchProcess:
        return True


def test_files_are_for_one_user_and_stay_in_the_folder(keeper):
    assert keeper.answer(Bring(files={"keys/worker.secret": b"secret"})) == Fine()

    path = keeper.folder / "keys" / "worker.secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert keeper.answer(Fetch(paths=("keys/worker.secret", "none"))) == FetchedFiles(
        files={"keys/worker.secret": b"secret"}
    )
    for name in ("../out", "/etc/passwd", "a/../../out", ""):
        assert isinstance(keeper.answer(Bring(files={name: b""})), RequestRefused)
        assert isinstance(keeper.answer(Fetch(paths=(name,))), RequestRefused)


def test_paths_and_ports_are_looked_for(keeper):
    assert keeper.answer(AskMissing(paths=("/", "/no/such"))) == MissingPaths(paths=("/no/such",))
    found = keeper.answer(AskPorts(address="127.0.0.1", count=3))
    assert isinstance(found, Ports)
    assert len(set(found.ports)) == 3
    assert isinstance(keeper.answer(AskPorts(address="192.0.2.1", count=1)), RequestRefused)


@pytest.mark.processes
def test_a_command_is_started_watched_and_ended(keeper):
    begun = keeper.answer(StartProcess("version", "command", ("--version",)))
    assert isinstance(begun, ProcessState)

    def seen() -> ProcessStates:
        answer = keeper.answer(AskStates(logs={"version.out": 0}))
        assert isinstance(answer, ProcessStates)
        return answer

    wait_until(lambda: seen().states["version"].ended)
    assert seen().states["version"].ended == "exit status 0"
    assert seen().logs["version.out"].startswith(b"dovetail ")
    lasting = keeper.answer(StartProcess("serve", "command", ("link", "serve", "--port", "0", "--host", "127.0.0.1")))
    assert isinstance(lasting, ProcessState)
    keeper.answer(Signal("serve", lasting.process_id + 1, "kill"))  # of an earlier one
    assert seen().states["serve"].ended == ""
    keeper.answer(Signal("serve", lasting.process_id, "kill"))
    wait_until(lambda: seen().states["serve"].ended)
    assert seen().states["serve"].ended == "killed by SIGKILL"
    keeper.answer(CloseKeeper())
    assert not keeper.folder.exists()


@pytest.mark.processes
def test_a_keeper_that_nobody_speaks_to_ends_everything(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    token = "0123456789abcdef"
    words = [sys.executable, "-m", "dovetail.runtime.launch.hosts.daemon", token, "1.0"]
    login = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(request):
        login.stdin.write(framed(encode(request)))
        login.stdin.flush()
        return decode_answer(login.stdout.read(int.from_bytes(login.stdout.read(LENGTH_BYTES), "big")))

    begun = ask(StartProcess("serve", "command", ("link", "serve", "--port", "0", "--host", "127.0.0.1")))
    assert isinstance(begun, ProcessState)
    login.kill()
    login.wait()
    login.stdin.close()
    login.stdout.close()

    wait_until(lambda: not folder_of(token).exists())
    wait_until(lambda: has_ended(begun.process_id))


def test_a_keeper_that_has_ended_starts_nothing_any_more(keeper):
    keeper.close()

    answer = keeper.answer(StartProcess("late", "command", ("--version",)))

    assert isinstance(answer, RequestRefused)
    assert "has ended" in answer.error
    assert not keeper.folder.exists()


@pytest.mark.processes
def test_whoever_speaks_while_a_keeper_ends_is_refused_and_leaves_no_process(tmp_path):
    for number in range(5):
        keeper, answers = Keeper(tmp_path / f"keeper-{number}", lost_s=60.0), []

        def start(name, keeper=keeper, answers=answers):
            answers.append(keeper.answer(StartProcess(name, "command", ("link", "serve", "--port", "0"))))

        starts = [threading.Thread(target=start, args=(f"serve-{each}",)) for each in range(4)]
        for thread in starts:
            thread.start()
        keeper.close()
        for thread in starts:
            thread.join(60)

        assert len(answers) == 4
        for answer in answers:
            assert isinstance(answer, RequestRefused) or has_ended(answer.process_id)


@pytest.mark.processes
def test_a_process_that_does_not_end_is_told_of(keeper, monkeypatch):
    program = [sys.executable, "-c", "import time; time.sleep(600)"]
    keeper._children["worker"] = subprocess.Popen(program, start_new_session=True)
    with monkeypatch.context() as patch:
        patch.setattr("dovetail.runtime.launch.hosts.keeper._signal", lambda child, number: None)
        patch.setattr("dovetail.runtime.launch.hosts.keeper.END_S", 0.1)
        answer = keeper.answer(StartProcess("worker"))

    assert isinstance(answer, RequestRefused)
    assert "timed out" in answer.error


def test_a_launcher_whose_files_take_long_to_come_is_not_silent(tmp_path):
    keeper = Keeper(tmp_path / "keeper", lost_s=60.0)
    keeper._heard_s -= 100.0
    assert keeper.is_alone
    here, there = socket.socketpair()
    thread = threading.Thread(target=_answer_all, args=(keeper, there))
    thread.start()
    envelope = framed(encode(Bring(files={"fixed": bytes(3000)})))
    with here:
        here.sendall(envelope[:1000])
        wait_until(lambda: not keeper.is_alone)
        here.sendall(envelope[1000:])
        assert here.recv(1 << 16)
    thread.join(60)

    assert (keeper.folder / "fixed").stat().st_size == 3000
    keeper.close()


def test_workers_take_the_units_of_fitting_hosts():
    hosts = [
        Host(name="big", address="10.0.0.1", units=4),
        Host(name="small", address="10.0.0.2", units=2),
        Host(name="gpus", address="10.0.0.3", units=2, type="v100"),
    ]
    places = UnitPlacement(hosts)
    run = make_run(
        workers=[RunWorker(name="w", count=3), RunWorker(name="wide", threads=2), RunWorker(name="gpu", device="cuda")]
    )
    run_places = places.place_all(run)

    assert run_places == {"w-0": "big", "w-1": "big", "w-2": "big", "wide": "small", "gpu": "gpus"}
    assert places.free == {"big": 1, "small": 0, "gpus": 1}
    with pytest.raises(PlanError, match="big has 1 of 4, small has 0 of 2"):
        places.place("more", RunWorker(name="more", threads=2), run)
    places.give_back("w-0")
    assert places.place("more", RunWorker(name="more", threads=2), run) == "big"
    with pytest.raises(PlanError, match="none is there"):
        places.place("more", RunWorker(name="more", threads=2), run, without=("big", "small"))


def test_a_hosts_file_says_which_key_is_wrong(tmp_path):
    path = tmp_path / "hosts.toml"
    for text, words in (
        ("", "host"),
        ("host = []", "is empty"),
        ('[[host]]\nname = "a"\naddress = "x"\n[[host]]\nname = "a"\naddress = "y"', 'two called "a"'),
        ('[[host]]\nname = "../a"\naddress = "x"', "name"),
        ('[[host]]\nname = "a"\naddress = "x"\nport = 70000', "port"),
        ('[[host]]\nname = "a"\naddress = "x"\nunits = 0', "units"),
        ('[[host]]\nname = "a"\naddress = "x"\npasword = "y"', "pasword"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=words):
            read_struct(path, HostsFile)


def test_probes_are_found_among_other_words():
    said = 'Welcome!\ndovetail-probe {"python": "3.11.7", "missing": [], "version": "1", "code": "x"}\n'
    found = read_probe(said)
    assert found is not None
    assert found.version == "1"
    assert read_probe("Welcome!") is None
    assert len(own_code()) == 64


def test_only_files_on_disks_are_looked_for():
    assert data_paths({"path": ["a.tsv", "s3://bucket/b.tsv"]}) == ["a.tsv"]
    assert data_paths({"path": "a.tsv"}) == ["a.tsv"]
    assert data_paths({}) == []


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 9999])
def test_messages_come_as_they_were_sent_however_they_are_cut(content):
    here, there = socket.socketpair()
    heard = []
    with closing(FramedSocket(there, heard=lambda: heard.append(1))) as receiving, here:
        sending = threading.Thread(target=lambda: [here.sendall(framed(each)) for each in (content, b"last")])
        sending.start()
        assert receiving.receive() == content
        assert receiving.receive() == b"last"
        sending.join(60)
        assert heard
        assert not receiving.poll(0.0)
        here.sendall(framed(b"whole")[:-1])
        here.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            receiving.receive()


def test_whoever_announces_more_than_anybody_sends_is_hung_up_on(keeper):
    with pytest.raises(ValueError, match=str(MOST_BYTES + 1)):
        length_of((MOST_BYTES + 1).to_bytes(LENGTH_BYTES, "big"))
    here, there = socket.socketpair()
    with here:
        here.sendall(b"\xff" * LENGTH_BYTES)
        _answer_all(keeper, there)
        assert here.recv(1) == b""


def test_what_is_no_request_is_refused_over_every_connection(keeper):
    for wrong in (b"", b"\x00", encode(HostFacts(keeper="x", cores=2, gpus=0, memory_bytes=1, folder="/f"))):
        assert isinstance(decode_answer(keeper.answer_encoded(wrong)), RequestRefused)
    assert decode_answer(keeper.answer_encoded(encode(AskMissing(paths=("/no/such",))))) == MissingPaths(("/no/such",))


def test_answers_travel_as_they_are():
    facts = HostFacts(keeper="x", cores=2, gpus=0, memory_bytes=1, folder="/f")
    assert decode_answer(encode(facts)) == facts
