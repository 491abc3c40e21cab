"""Runs whose sums are masked: as plain ones, but for what servers see."""

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dovetail.errors import SpecError
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.masking.fixed_point import FixedPoint
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.privacy import RunPrivacy
from dovetail.spec.run import Run, RunModel, with_settings
from dovetail.spec.run_sections import RunOptimizer, RunSaving
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import ADAGRAD, ADAM, assert_nothing_left, kill, last_state, log_of, make_run, train

SGD = RunOptimizer(name="sgd", rows="sgd", learning_rate=0.1)


def masked(run, **privacy):
    return msgspec.structs.replace(run, privacy=RunPrivacy(aggregation="masked", **privacy))


# -- the same as plain -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "servers", "optimizer"),
    [
        (3, 2, ADAGRAD),
        pytest.param(2, 1, SGD, marks=pytest.mark.slow),
        pytest.param(4, 1, ADAM, marks=pytest.mark.slow),
    ],
)
def test_a_run_ends_where_a_plain_one_does(tmp_path, workers, servers, optimizer):
    run = make_run(workers=workers, servers=servers, optimizer=optimizer, samples=1000, micro_batch=64)
    train(run, tmp_path / "plain")
    train(masked(run), tmp_path / "masked")

    plain, hidden = (last_state(tmp_path / name) for name in ("plain", "masked"))
    assert hidden.manifest.position == plain.manifest.position == 1000
    # The mean of a step is off by half a unit a worker over 200 samples; so are sums in another order, in float32.
    unit = FixedPoint(Blueprint.read(tmp_path / "masked").mask_reach, workers).unit
    off = workers * unit / 2 / 200
    assert off < 1e-8
    np.testing.assert_allclose(hidden.dense, plain.dense, atol=3e-6)
    for here, there in zip(hidden.rows, plain.rows, strict=True):
        np.testing.assert_allclose(here, there, atol=3e-6)
    assert [keys.tolist() for keys in hidden.keys] == [keys.tolist() for keys in plain.keys]
    summaries = [(tmp_path / name / "summary.json").read_bytes() for name in ("plain", "masked")]
    losses = [msgspec.json.decode(summary)["loss"] for summary in summaries]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_numbers_beyond_the_range_are_cut_and_said(tmp_path):
    run = make_run(workers=2, optimizer=SGD, samples=400)
    train(masked(run, mask_range=1e-9), tmp_path / "run")

    assert re.search(r"\d+ numbers of a gradient were beyond 2e-07", log_of(tmp_path / "run", "worker-0"))


# -- who sees what ---------------------------------------------------------------------------------------------------


def memory_of(process_id):
    """Return all that a process can write to, but for pages that are empty."""
    found = []
    maps = Path(f"/proc/{process_id}/maps").read_text().splitlines()
    with Path(f"/proc/{process_id}/mem").open("rb") as memory:
        for line in maps:
            span, rights = line.split()[:2]
            begin, end = (int(each, 16) for each in span.split("-"))
            if "rw" in rights and "[v" not in line:
                with contextlib.suppress(OSError, ValueError, OverflowError):
                    memory.seek(begin)
                    found.append(without_empty_pages(memory.read(end - begin)))
    return b"".join(found)


def without_empty_pages(data):
    pages = np.frombuffer(data[: len(data) // 4096 * 4096], dtype=np.uint64).reshape(-1, 512)
    return pages[pages.any(axis=1)].tobytes() + data[len(data) // 4096 * 4096 :]


def gradients_in(folder, newest):
    """Return some of what workers noted in so many of the newest steps: rows, and parts of the dense gradient."""
    paths = sorted(folder.glob("worker-*[0-9].npz"), key=lambda path: -int(path.name.split("-")[3]))
    found = []
    for path in paths[:newest]:
        with np.load(path) as arrays:
            rows = [row for name in arrays.files if name != "dense" for row in arrays[name]]
            dense = arrays["dense"]
        pieces = rows[::3] + [dense[at : at + 16] for at in range(0, len(dense) - 16, 200)]
        found += [piece for piece in pieces if np.count_nonzero(piece) == len(piece)]
    return found


def looked_at(folder, is_masked, workers):
    """Train for some steps, stop the server now and then, and return how many of single workers' gradients it has."""
    place = folder / "noted"
    place.mkdir(parents=True)
    run = make_run(
        model=RunModel(name="tests.runtime.watched:watched_model", options={"folder": str(place), "pause_s": 0.03}),
        optimizer=SGD,
        workers=workers,
        servers=1,
        samples=100_000,
        batch=100 * workers,
        checkpoint=RunSaving(every_steps=5, every_s=None),
    )
    run = masked(run) if is_masked else run
    prepare(run, folder / "run")
    counts = {"float32": 0, "fixed point": 0, "files": 0, "looked for": 0}
    fixed = FixedPoint(float(run.training.batch), workers)
    with LocalRun(folder / "run") as local:
        server, until_s, least = local.children["server-0"].process_id, time.monotonic() + 90, 6
        for look in range(workers - 1):
            while (report := local.look()) is None or report.step < least:
                assert time.monotonic() < until_s
                assert report is None or report.state not in ("done", "failed"), report.error
                time.sleep(0.003)
            time.sleep(0.01 * look)  # somewhere within a step
            os.kill(server, signal.SIGSTOP)
            memory = memory_of(server)
            print(len(memory))
            pieces = gradients_in(place, 3 * workers)
            files = [path for path in (folder / "run").rglob("*") if path.is_file()]
            files += [path for path in Path(str(local.blueprint.lanes)).rglob("*") if path.is_file()]
            held = b"".join(without_empty_pages(path.read_bytes()) for path in files if path.exists())
            os.kill(server, signal.SIGCONT)
            least = report.step + 3
            for piece in pieces:
                words = np.zeros(len(piece), dtype=np.uint32)
                fixed.add_to(words, piece)
                counts["looked for"] += 1
                counts["float32"] += piece.tobytes() in memory
                counts["fixed point"] += words.tobytes() in memory
                counts["files"] += piece.tobytes() in held
        for name in local.children:
            kill(local, name)
    return counts


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_servers_memory_and_files_never_hold_one_workers_gradient(tmp_path, workers):
    plain = looked_at(tmp_path / "plain", False, workers)
    hidden = looked_at(tmp_path / "masked", True, workers)

    # The same search finds them where the run is plain.
    assert plain["looked for"] > 15
    assert plain["float32"] > plain["looked for"] / 10
    assert hidden["looked for"] > 15
    assert hidden["float32"] == hidden["fixed point"] == hidden["files"] == 0


# -- who drops out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_a_worker_that_dies_in_a_step_costs_that_step_and_every_sample_counts_once(tmp_path, workers):
    over, killed = tmp_path / "over", []
    run = make_run(
        model=slow_counting(0.004, until=over),
        optimizer=PLAIN,
        reduction="sum",
        samples=6000,
        batch=60,
        workers=workers,
        servers=2,
        patience_s=5.0,
        checkpoint=RunSaving(every_s=None),
    )
    last_s = [0.0]

    def meanwhile(local, report):
        now_s = time.monotonic()
        if report.state == "running" and len(killed) < 3 and report.samples and now_s - last_s[0] > 1.5:
            if last_s[0]:
                name = f"worker-{len(killed) % workers}"
                if local.children[name].how_it_ended() is not None:
                    return
                kill(local, name, signal.SIGKILL)
                killed.append((name, report.step))
            last_s[0] = now_s
            if len(killed) == 3:
                over.touch()

    local = train(masked(run), tmp_path / "run", meanwhile=meanwhile)

    assert_nothing_left(local)
    assert len(killed) == 3
    assert_each_sample_counts_once(tmp_path / "run")
    told = log_of(tmp_path / "run", "coordinator")
    for name, _ in killed:
        assert f"masks go on without {name}; the step under way begins again" in told
    assert "goes back" not in told
    lines = [msgspec.json.decode(line) for line in (tmp_path / "run" / "journal.jsonl").read_bytes().splitlines()]
    steps = [line["commit"]["step"] for line in lines if "commit" in line]
    assert steps == sorted(set(steps))  # none was applied twice, and none undone


@pytest.mark.slow
def test_servers_and_the_coordinator_may_die_too(tmp_path):
    over, killed = tmp_path / "over", []
    run = make_run(
        model=slow_counting(0.004, until=over),
        optimizer=PLAIN,
        reduction="sum",
        samples=6000,
        batch=60,
        workers=2,
        servers=2,
        patience_s=5.0,
        checkpoint=RunSaving(every_s=None),
    )
    last_s = [0.0]

    def meanwhile(local, report):
        now_s = time.monotonic()
        names = ["server-1", "coordinator"]
        if report.state == "running" and len(killed) < 2 and report.samples and now_s - last_s[0] > 2.0:
            if last_s[0]:
                kill(local, names[len(killed)], signal.SIGKILL)
                killed.append(report.step)
            last_s[0] = now_s
            if len(killed) == 2:
                over.touch()

    train(masked(run), tmp_path / "run", meanwhile=meanwhile)

    assert len(killed) == 2
    assert_each_sample_counts_once(tmp_path / "run")


# -- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "key", "reason"),
    [
        ({"training.mode": "async"}, "training.mode", "masks cancel in the sum over all workers of one step"),
        ({"training.mode": "ssp"}, "training.mode", "masks cancel"),
        ({"training.dense": "ring"}, "training.dense", "see each other's sums"),
        ({"worker": [{"count": 1}]}, "worker", "a sum of one is its gradient"),
        ({"worker": [{"count": 1025}]}, "worker", "few levels"),
        ({"compression.bits": 8}, "compression.bits", "cannot be sent in fewer bits"),
        ({"compression.topk": 0.1}, "compression.topk", "cannot be sent in fewer bits"),
        ({"training.tail": 0.1}, "training.tail", "one mask"),
        ({"training.batch_norm": "global"}, "training.batch_norm", "would go to a server"),
        ({"table.place": "sharded"}, "table.place", "no servers"),
        ({"table.place": "local"}, "table.place", "no servers"),
    ],
)
def test_what_cannot_be_masked_is_refused_with_the_reason(settings, key, reason):
    run = Run(model=RunModel(name="ctr-dnn"))

    with pytest.raises(SpecError, match=re.escape(f"{key} is")) as caught:
        with_settings(run, {"privacy.aggregation": "masked", **settings}, place="here")
    assert reason in str(caught.value)
    assert caught.value.hint


def test_a_run_that_names_nothing_else_has_two_workers_and_servers():
    run = with_settings(Run(model=RunModel(name="ctr-dnn")), {"privacy.aggregation": "masked"}, place="here")

    assert run.table.place == "servers"
    assert len(run.each_worker()) == 2


def test_a_step_of_one_sample_is_refused(tmp_path):
    run = make_run(workers=2, samples=401)

    with pytest.raises(TrainingError, match="of 401 samples in batches of 200 one is a step by itself"):
        prepare(masked(run), tmp_path / "run")


def test_norms_over_whole_batches_are_refused(tmp_path):
    run = make_run(model=RunModel(name="tests.runtime.test_masked_runs:normed"), workers=2)

    with pytest.raises(SpecError, match=r"training\.batch_norm is .global., and sums are masked"):
        prepare(masked(run), tmp_path / "run")


def normed(schema):
    from torch import nn

    from dovetail.models.block import Block
    from dovetail.models.embedding import SlotEmbedding
    from dovetail.models.layer_graph import LayerGraph
    from dovetail.models.recipe import Recipe
    from tests.runtime.watched import Squares

    embedding = SlotEmbedding(num_rows=40, width=4, num_slots=schema.num_slots)
    return LayerGraph(
        [
            Block(name="embedding", kind="embedding", module=embedding, after=(), reads=("ids", "offsets")),
            Block(name="norm", kind="other", module=nn.BatchNorm1d(4 * schema.num_slots)),
            Block(name="loss", kind="loss", module=Squares(0.0), reads=("labels",)),
        ],
        recipe=Recipe(metric="none"),
    )
