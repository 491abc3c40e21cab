"""Rows on a device: equal to a dict whatever is looked up, stepped, announced, moved, deleted and saved.

The tier is real torch memory. Without a GPU it lies on the CPU: the same code but for streams and Triton.
"""

import numpy as np
import pytest
import torch

from dovetail.embedding import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamPerRow,
    RowWiseAdagrad,
    Table,
    TableEmbedding,
    TableError,
    look_ahead,
)
from dovetail.embedding.tiers.device.prefetched_batch import MOST_TOGETHER
from tests.embedding.twins import DictTable, assert_same
from tests.waiting import wait_until

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
WIDTH = 6


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def make(device, tmp_path, *, device_rows=40, optimizer=None, host_rows=None, **options):
    return Table(
        width=WIDTH,
        optimizer=optimizer or Adagrad(),
        seed=3,
        device=device,
        device_bytes=1 << 20,
        device_rows=device_rows,
        host_rows=host_rows,
        folder=tmp_path / "cold",
        **options,
    )


def gradients_of(rng, count):
    return rng.normal(size=(count, WIDTH)).astype(np.float32)


@pytest.mark.parametrize(
    "optimizer",
    [SGD(), Adagrad(first_sum=0.1), RowWiseAdagrad(), Adam(), AdamPerRow(), FTRL(l1=0.01)],
    ids=lambda o: o.name,
)
def test_steps_on_the_device_have_the_bits_of_a_dict(device, tmp_path, optimizer):
    rng = np.random.default_rng(0)
    model = DictTable(width=WIDTH, optimizer=optimizer, seed=3)
    with make(device, tmp_path, optimizer=optimizer) as table:
        for _ in range(30):
            keys = rng.integers(-50, 50, size=25)
            gradients = gradients_of(rng, len(keys))
            batch = table.on_device.look_up(keys)
            assert batch.values().cpu().numpy().tobytes() == model.lookup(keys.tolist()).tobytes()
            batch.step(torch.from_numpy(gradients).to(device))
            model.update(keys.tolist(), gradients)
        assert table.stats().device_rows <= 40
        assert_same(table, model)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("host_rows", [None, 30], ids=["host", "host+disk"])
def test_whatever_is_done_a_table_with_a_device_is_a_dict(device, tmp_path, seed, host_rows):  # noqa: C901 - a case each
    rng = np.random.default_rng(seed)
    optimizer = Adagrad(first_sum=0.01)
    model = DictTable(width=WIDTH, optimizer=optimizer, seed=3, ageing_lookups=700)
    table = make(device, tmp_path, optimizer=optimizer, host_rows=host_rows, ageing_lookups=700)
    ahead = []

    def some_keys():
        return (rng.zipf(1.3, size=rng.integers(1, 30)) % 120 - 20).astype(np.int64)

    for _ in range(150):
        match rng.choice(
            ["train", "announce", "update", "look", "host", "host update", "expire", "save", "rows", "prefetch"],
            p=[0.35, 0.25, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05],
        ):
            case "announce":
                ahead.append(some_keys())
                table.on_device.announce(ahead[-1])
            case "train":
                keys = ahead.pop(0) if ahead else some_keys()
                gradients = gradients_of(rng, len(keys))
                batch = table.on_device.look_up(keys)
                assert batch.values().cpu().numpy().tobytes() == model.lookup(keys.tolist()).tobytes()
                if rng.random() < 0.1:
                    table.rows(keys)  # between look-up and step
                batch.step(torch.from_numpy(gradients).to(device))
                model.update(keys.tolist(), gradients)
            case "update":
                keys = some_keys()
                gradients = gradients_of(rng, len(keys))
                table.on_device.update(keys, torch.from_numpy(gradients).to(device))
                model.update(keys.tolist(), gradients)
            case "look":
                keys = some_keys()
                values = table.on_device.look_up(keys, insert=False).values()
                assert values.cpu().numpy().tobytes() == model.lookup(keys.tolist(), insert=False).tobytes()
            case "host":
                keys = some_keys()
                assert table.lookup(keys).tobytes() == model.lookup(keys.tolist()).tobytes()
            case "host update":
                keys = some_keys()
                gradients = gradients_of(rng, len(keys))
                table.update(keys, gradients)
                model.update(keys.tolist(), gradients)
            case "expire":
                assert sorted(table.expire(max_age_steps=25).tolist()) == model.expire(max_age_steps=25)
            case "save":
                table.save(tmp_path / "saved")
                if rng.random() < 0.5:
                    table.close()
                    options = (
                        {"device": device, "device_bytes": 1 << 20, "device_rows": 40} if rng.random() < 0.7 else {}
                    )
                    table = Table.load(
                        tmp_path / "saved", host_rows=host_rows, folder=tmp_path / "c", ageing_lookups=700, **options
                    )
                    model.counted = 0
                    if not options:
                        assert_same(table, model)
                        table.close()
                        table = Table.load(
                            tmp_path / "saved",
                            device=device,
                            device_bytes=1 << 20,
                            device_rows=40,
                            host_rows=host_rows,
                            folder=tmp_path / "d",
                            ageing_lookups=700,
                        )
                    for keys in ahead:
                        table.on_device.announce(keys)
            case "rows":
                assert_same(table, model)
            case "prefetch":
                table.prefetch(some_keys()).result()
    assert_same(table, model)
    table.close()


def test_as_many_batches_as_are_planned_at_once_are_a_dict(device, tmp_path):
    rng = np.random.default_rng(5)
    model = DictTable(width=WIDTH, optimizer=Adagrad(), seed=3)
    with make(device, tmp_path, device_rows=2000) as table:
        for _ in range(3):
            ahead = [rng.integers(0, 3000, size=rng.integers(1, 60)) for _ in range(3 * MOST_TOGETHER)]
            planner = table.on_device._prefetcher
            with planner._turn:
                for keys in ahead:
                    table.on_device.announce(keys)
                wait_until(lambda waiting=planner._waiting: len(waiting) == 3 * MOST_TOGETHER)
            for keys in ahead:
                gradients = gradients_of(rng, len(keys))
                batch = table.on_device.look_up(keys)
                assert batch.values().cpu().numpy().tobytes() == model.lookup(keys.tolist()).tobytes()
                batch.step(torch.from_numpy(gradients).to(device))
                model.update(keys.tolist(), gradients)
        moved = table.on_device.moved()
        assert moved.num_rounds < moved.num_batches / 2
        assert_same(table, model)


def test_a_fused_step_is_a_look_up_and_a_step(device, tmp_path):
    from dovetail.embedding import FusedStep

    rng = np.random.default_rng(5)
    batches = [(rng.integers(0, 60, size=24), gradients_of(rng, 24)) for _ in range(20)]
    batches.append((rng.integers(0, 60, size=7), gradients_of(rng, 7)))
    model = DictTable(width=WIDTH, optimizer=Adagrad(), seed=3)
    with make(device, tmp_path) as table:
        step = FusedStep(table.on_device, lambda values, factors: (values * factors).sum(), lambda: None)
        for position, (keys, gradients) in enumerate(batches):
            for ahead in batches[0 if position == 0 else position + 3 : position + 4]:
                table.on_device.announce(ahead[0], ahead[1])
            loss = step()
            values = model.lookup(keys.tolist())
            assert float(loss) == pytest.approx(float((values * gradients).sum()), rel=1e-4, abs=1e-4)
            model.update(keys.tolist(), gradients)
        assert table.step == len(batches)
        assert_same(table, model)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_layer_over_rows_on_a_device_trains_as_one_over_rows_in_memory(device, tmp_path, mode):
    rng = np.random.default_rng(6)
    batches = []
    for _ in range(15):
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, size=12))])
        batches.append((torch.from_numpy(rng.integers(0, 80, size=offsets[-1])), torch.from_numpy(offsets)))
    outcomes = []
    with make(device, tmp_path) as table, Table(width=WIDTH, optimizer=Adagrad(), seed=3) as other:
        for each in (table, other):
            layer, seen = TableEmbedding(each, num_slots=3, mode=mode), []
            layer.to(device if each is table else "cpu")
            for ids, offsets in look_ahead(batches, each, keys=lambda batch: batch[0].numpy(), depth=3):
                vectors = layer(ids, offsets)
                seen.append(vectors.detach().cpu())
                (vectors.sin() * 0.1).sum().backward()
            layer.eval()
            seen.append(layer(*batches[0]).cpu())
            outcomes.append(torch.cat(seen))
        assert table.on_device.num_ahead == 0
        assert table.stats().device_rows > 0
        torch.testing.assert_close(outcomes[0], outcomes[1], rtol=1e-5, atol=1e-6)


def test_look_ahead_forgets_what_is_not_looked_up(device, tmp_path):
    batches = [np.arange(10 * n, 10 * n + 8) for n in range(10)]
    with make(device, tmp_path) as table:
        for keys in look_ahead(batches, table, keys=lambda batch: batch, depth=2):
            if keys[0] % 20 == 0:
                table.on_device.look_up(keys).release()
        assert sorted(table.keys().tolist()) == sorted(np.concatenate(batches[::2]).tolist())


def test_a_batch_larger_than_the_device_is_refused_with_what_would_work(device, tmp_path):
    with make(device, tmp_path, device_rows=10) as table:
        table.on_device.announce(np.arange(5))
        table.on_device.announce(np.arange(30))
        assert table.on_device.look_up().values().shape == (5, WIDTH)
        with pytest.raises(TableError, match=r"30 distinct keys.* has room for 10 rows") as caught:
            table.on_device.look_up()
        least = int(caught.value.hint.split("at least ")[1].split(",")[0])
        assert table.on_device.look_up(np.arange(10)).values().shape == (10, WIDTH)
    with Table(width=WIDTH, device=device, device_bytes=least) as table:
        assert table.on_device.look_up(np.arange(30)).values().shape == (30, WIDTH)


def test_batches_in_use_that_fill_the_device_are_named(device, tmp_path):
    with make(device, tmp_path, device_rows=10) as table:
        held = table.on_device.look_up(np.arange(8))
        with pytest.raises(TableError, match="batches in use hold 8 rows, another one has 4") as caught:
            table.on_device.look_up(np.arange(10, 14))
        assert "step each batch" in caught.value.hint
        held.release()
        assert len(table.on_device.look_up(np.arange(10, 14)).values()) == 4


def test_a_batch_without_keys_is_nothing(device, tmp_path):
    with make(device, tmp_path) as table:
        batch = table.on_device.look_up(np.empty(0, dtype=np.int64))
        assert batch.values().shape == (0, WIDTH)
        batch.step(torch.empty((0, WIDTH), device=device))
        assert len(table) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_without_cuda_a_table_says_so():
    with pytest.raises(TableError, match="the device `cuda` is not there") as caught:
        Table(width=4, device_bytes=1 << 20)
    assert "leave device_bytes away" in caught.value.hint


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(TableError, match=name):
        Table(width=4, device=name, device_bytes=1 << 20)


def test_a_full_host_without_a_disk_stops_the_training_and_says_why(device):
    with Table(width=WIDTH, device=device, device_bytes=1 << 20, device_rows=20, host_rows=30) as table:

        def train():
            for number in range(20):
                table.on_device.look_up(np.arange(20 * number, 20 * number + 20)).release()

        with pytest.raises(TableError, match="could not be moved") as caught:
            train()
        assert "folder" in caught.value.hint


TIERINGS = {
    "host": {},
    "host and disk": {"host_rows": 30},
    "device": {"device_rows": 200},
    "device and host": {"device_rows": 40},
    "all three": {"device_rows": 40, "host_rows": 30},
}


@pytest.mark.parametrize("last", TIERINGS)
@pytest.mark.parametrize("first", TIERINGS)
def test_a_checkpoint_of_one_tiering_loads_into_any_other(device, tmp_path, first, last):
    rng = np.random.default_rng(8)
    model = DictTable(width=WIDTH, optimizer=Adagrad(), seed=3)

    def options(name, folder):
        on_device = {"device": device, "device_bytes": 1 << 20} if "device_rows" in TIERINGS[name] else {}
        return {**TIERINGS[name], **on_device, "folder": tmp_path / folder}

    def train(table):
        for _ in range(12):
            keys, gradients = rng.integers(0, 100, size=20), gradients_of(rng, 20)
            if table.on_device is None:
                table.lookup(keys)
                table.update(keys, gradients)
            else:
                table.on_device.look_up(keys).step(torch.from_numpy(gradients).to(device))
            model.lookup(keys.tolist())
            model.update(keys.tolist(), gradients)

    with Table(width=WIDTH, optimizer=Adagrad(), seed=3, **options(first, "one")) as table:
        train(table)
        table.save(tmp_path / "saved")
    with Table.load(tmp_path / "saved", **options(last, "two")) as table:
        assert_same(table, model)
        train(table)
        table.save(tmp_path / "saved again")
        assert_same(table, model)
    with Table.load(tmp_path / "saved again", **options(first, "three")) as table:
        assert_same(table, model)
