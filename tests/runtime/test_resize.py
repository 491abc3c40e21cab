"""A run that gets more and fewer workers while it goes on, as its folder asks for."""

import pytest

from dovetail.runtime.folder import ask_for, present_in
from dovetail.spec.run import RunModel
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import make_run, train


@pytest.mark.parametrize(
    "mode",
    [
        {"dense": "ring"},
        pytest.param({"mode": "sync"}, marks=pytest.mark.slow),
        pytest.param({"mode": "async"}, marks=pytest.mark.slow),
    ],
)
def test_workers_come_and_go_and_every_sample_counts_once(tmp_path, mode):
    seen_all = tmp_path / "seen"
    model = slow_counting(0.003, until=seen_all)
    run = make_run(model=model, optimizer=PLAIN, reduction="sum", workers=2, samples=30_000, **mode)
    sizes, seen, events = [3, 1, 2], [], []

    def meanwhile(local, report):
        events.extend(report.events)
        there = [worker.name for worker in report.workers if worker.state == "working" and worker.samples]
        if len(seen) < len(sizes) and len(there) == ([2, *sizes])[len(seen)]:
            local.resize(sizes[len(seen)])
            seen.append(tuple(there))
        elif len(seen) == len(sizes) and len(there) == sizes[-1]:
            seen.append(tuple(there))
            seen_all.touch()

    train(run, tmp_path / "run", meanwhile=meanwhile)

    assert seen[:4] == [
        ("worker-0", "worker-1"),
        ("extra-1", "worker-0", "worker-1"),
        ("worker-0",),
        ("worker-0", "worker-1"),
    ]
    assert sum("it leaves, as it was told to" in event for event in events) == 2
    assert present_in(tmp_path / "run").wanted == 2
    assert_each_sample_counts_once(tmp_path / "run")


def test_a_worker_that_cannot_come_is_done_without(tmp_path):
    over = tmp_path / "over"
    model = RunModel(name="tests.runtime.failing:fails_in_extras", options={"pause_s": 0.003, "until": str(over)})
    run = make_run(model=model, optimizer=PLAIN, reduction="sum", workers=1, samples=20_000)
    starts = []

    def meanwhile(local, report):
        local.resize(2)
        starts.extend(child.starts for child in local.children.values() if child.name == "extra-1")
        if 3 in starts and "extra-1" not in local.children:
            over.touch()

    train(run, tmp_path / "run", meanwhile=meanwhile)

    assert max(starts) == 3
    assert "told to fail in extras" in (tmp_path / "run" / "logs" / "extra-1.log").read_text()
    assert present_in(tmp_path / "run").workers == ("worker",)
    assert_each_sample_counts_once(tmp_path / "run")


def test_what_is_no_size_is_passed_over(tmp_path):
    run = make_run(model=slow_counting(0.001), optimizer=PLAIN, reduction="sum", workers=1, samples=1000)
    words = iter([b"{", b'{"workers": "two"}', b'{"workers": 0}', b""])

    def meanwhile(local, report):
        if (word := next(words, None)) is not None:
            (local.folder / "size.json").write_bytes(word)

    train(run, tmp_path / "run", meanwhile=meanwhile)

    assert present_in(tmp_path / "run").wanted == 1
    assert present_in(tmp_path) is None
    ask_for(tmp_path, 3)
    assert (tmp_path / "size.json").read_bytes() == b'{"workers":3}'
