"""Dense parameters in a ring of threads: the same sum everywhere, the same update, and only once it is committed."""

import socket
import time
from functools import partial

import numpy as np
import pytest
import torch

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.messages import (
    Apply,
    Holds,
    InRing,
    JoinRing,
    Reduced,
    RingBroken,
    RingMeets,
    Saved,
    SaveDense,
    Stop,
)
from dovetail.runtime.model.build import build_model
from dovetail.runtime.process import Process
from dovetail.runtime.worker.compute.computer import Computer
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.dense import ring
from dovetail.runtime.worker.dense.ring import RingSync
from dovetail.runtime.worker.rows.batch_rows import BatchRows
from dovetail.runtime.worker.tasks.task import Task
from dovetail.spec.run_sections import RunOptimizer
from tests.runtime.worker.makers import CPU, assign, running

RATE = 0.5


class Member:
    """A worker of a ring: its model, and what it told the coordinator."""

    def __init__(self, bench, name):
        self.bench, self.name, self.told = bench, name, []
        graph = build_model(bench.run, bench.source.schema)
        self.model = ServedModel(graph, BatchRows(bench.blueprint.num_servers, CPU), CPU)
        self.sync = RingSync(Process(bench.folder, name), self.model, self.told.append)
        self.sync.reset(1)
        assert self.told.pop() == Holds(name=name, generation=1, era=-1, version=-1)

    def catch_up(self):
        self.sync.catch_up(lambda generation: generation == 1)

    def finish(self, step=0):
        self.span = self.sync.finish(Task(assign((0, 1), step=step), closed=True), lambda: True)

    def wait_for(self, kind):
        until_s = time.monotonic() + 60
        while not any(isinstance(message, kind) for message in self.told):
            assert time.monotonic() < until_s, self.told
            time.sleep(0.001)


@pytest.fixture
def make_members(make_bench):
    bench = make_bench(dense="ring", optimizer=RunOptimizer(name="sgd", learning_rate=RATE))
    return lambda count: [Member(bench, f"worker-{number}") for number in range(count)]


def invitation(members, **how):
    folder = str(checkpoints.newest(members[0].bench.folder))
    names = tuple(member.name for member in members)
    return JoinRing(**({"generation": 1, "era": 1, "step": 0, "members": names, "source": "", "folder": folder} | how))


def form(members, **how):
    """Have members form a ring, as the coordinator does."""
    if len(members) > 1:
        members[0].sync.handle(invitation(members, **how))
        members[0].catch_up()
        how["meeting"] = members[0].told[-1].meeting
    for member in members:
        member.sync.handle(invitation(members, **how))
    with running(*(member.catch_up for member in members)):
        pass
    assert all(isinstance(member.told[-1], InRing) for member in members)


def step(members, number=0, scale=0.1):
    """Sum and apply the gradients that members have."""
    with running(*(partial(member.finish, number) for member in members)):
        for member in members:
            member.wait_for(Reduced)
        before = members[0].model.values.clone()
        assert members[0].sync.handle(Apply(generation=1, step=number, scale=scale, factor=1.0))
        for member in members[1:]:
            assert torch.equal(member.model.values, before)  # nothing moves before the step is committed
            member.sync.handle(Apply(generation=1, step=number, scale=scale, factor=1.0))


@pytest.mark.parametrize("count", [1, 2])
def test_the_update_is_that_of_the_sum_of_all_members_gradients(make_members, count):
    members = make_members(count)
    form(members)
    first = members[0].model.values.clone()
    torch.manual_seed(0)
    total = torch.zeros_like(first)
    for member in members:
        member.model.gradients.copy_(torch.randn_like(first))
        total += member.model.gradients
    step(members)

    for member in members:
        torch.testing.assert_close(member.model.values, first - RATE * 0.1 * total, rtol=1e-5, atol=1e-6)
        assert member.model.gradients.abs().sum() == 0
        assert member.span.kind == "reduce"


def test_a_member_loads_the_checkpoints_parameters_and_writes_its_own(make_members, tmp_path):
    (member,) = make_members(1)
    member.model.values.zero_()
    form([member])
    newest = checkpoints.newest(member.bench.folder)
    kept, _ = checkpoints.load_dense(newest, checkpoints.RunManifest.read(newest))
    np.testing.assert_array_equal(member.model.values.numpy(), kept)

    (tmp_path / "partial").mkdir()
    assert member.sync.handle(SaveDense(generation=1, number=1, step=0, folder=str(tmp_path / "partial")))
    assert isinstance(member.told[-1], Saved)
    assert list(member.told[-1].files) == ["dense-0.safetensors"]
    member.sync.handle(SaveDense(generation=1, number=2, step=0, folder=str(tmp_path / "missing")))
    assert member.told[-1].hint == "check the disk"


def test_a_newcomer_gets_the_parameters_of_a_member(make_members):
    old, new = make_members(2)
    form([old])
    old.model.gradients.fill_(1.0)
    step([old])
    old.told.clear()
    new.model.values.zero_()
    form([old, new], source="worker-0", step=1)

    assert torch.equal(new.model.values, old.model.values)
    for member in (old, new):
        member.model.gradients.fill_(1.0)
    step([old, new], number=1)  # both know that one step is done
    assert torch.equal(new.model.values, old.model.values)


def test_a_source_that_lacks_a_step_breaks_the_ring_instead_of_spreading_what_it_has(make_members):
    (member,) = make_members(1)
    form([member])
    member.sync.handle(invitation([member], source="worker-0", step=1))
    member.catch_up()

    assert isinstance(member.told[-1], RingBroken)


def test_an_update_of_a_generation_that_is_over_is_not_applied(make_members):
    (member,) = make_members(1)
    form([member])
    before = member.model.values.clone()
    member.model.gradients.fill_(1.0)
    with running(member.finish):
        member.wait_for(Reduced)
        member.sync.handle(Apply(generation=0, step=0, scale=1.0, factor=1.0))
        assert torch.equal(member.model.values, before)
        member.sync.handle(Apply(generation=1, step=0, scale=1.0, factor=1.0))

    assert not torch.equal(member.model.values, before)


def test_sums_that_begin_during_the_backward_pass_are_the_same(make_members, monkeypatch):
    monkeypatch.setattr(ring, "BUCKET_BYTES", 64)  # several buckets for this small model
    members = make_members(2)
    form(members)
    sums = []
    for overlap in (False, True):
        with running(
            *(lambda m=member, n=number, o=overlap: compute(m, n, o) for number, member in enumerate(members))
        ):
            for member in members:
                member.wait_for(Reduced)
            sums.append([member.model.gradients.clone() for member in members])
            for member in members:
                member.told.clear()
                member.sync.handle(Apply(generation=1, step=int(overlap), scale=0.0, factor=1.0))

    for later, overlapped in zip(*sums, strict=True):
        torch.testing.assert_close(overlapped, later, rtol=1e-5, atol=1e-6)
    assert sums[0][0].abs().sum() > 0
    assert torch.equal(sums[1][0], sums[1][1])


def compute(member, number, overlap):
    """Compute some samples and sum their gradients, the sum begun early or late."""
    batch = member.bench.samples.read(0, 20 * number, 20 * number + 20)
    lines = member.bench.lines()
    Computer(member.model).compute(
        batch,
        [],
        lambda wanted: lines.pull(1, 0, [wanted], dense=False, wanted=lambda: True).rows[0],
        where="here",
        before_backward=member.sync.begin_last if overlap else lambda: None,
    )
    member.finish(int(overlap))


def test_a_call_to_an_old_ring_is_not_followed(make_members):
    (member,) = make_members(1)
    member.sync.handle(invitation([member], generation=0))
    member.catch_up()

    assert member.told == []


def test_a_member_stops_waiting_for_others_when_the_ring_is_not_wanted(make_members):
    first, second = make_members(2)
    first.sync.handle(invitation([first, second]))
    first.catch_up()
    (meets,) = first.told
    assert isinstance(meets, RingMeets)
    looks = []

    def is_current(generation):
        looks.append(generation)
        return len(looks) < 4

    first.sync.handle(invitation([first, second], meeting=meets.meeting))
    first.sync.catch_up(is_current)

    assert first.told == [meets]
    assert len(looks) >= 4


def test_a_meeting_place_that_is_gone_is_told(make_members, monkeypatch):
    monkeypatch.setattr(ring, "RENDEZVOUS_S", 0.3)
    first, second = make_members(2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        second.sync.handle(invitation([first, second], meeting=f"127.0.0.1:{taken.getsockname()[1]}"))
        second.catch_up()

    (broken,) = second.told
    assert isinstance(broken, RingBroken)
    assert (broken.name, broken.generation) == ("worker-1", 1)
    assert broken.error


def test_an_update_of_a_step_that_was_not_summed_is_left_out(make_members):
    (member,) = make_members(1)
    form([member])
    before = member.model.values.clone()
    member.model.gradients.fill_(1.0)
    assert member.sync.handle(Apply(generation=1, step=3, scale=1.0, factor=1.0))

    assert torch.equal(member.model.values, before)


def test_other_messages_are_left_to_others_and_servers_get_no_dense_gradients(make_members):
    (member,) = make_members(1)

    assert not member.sync.handle(Stop())
    assert member.sync.gradients_to_push() is None
    assert not member.sync.is_fetched


def test_a_task_that_is_not_wanted_any_more_waits_for_nobody(make_members):
    (member,) = make_members(1)
    form([member])

    assert member.sync.finish(Task(assign((0, 1)), closed=True), lambda: False) is None
