"""Rows on a device: equal to a dict whatever is looked up, stepped, announced, moved, deleted and saved.

The tier is real torch memory. Without a GPU it lies on the CPU: the same code but for streams and Triton.
"""

import numpy as np
import pytest
import torch

from dovetail.embedding import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad, Table
from tests.embedding.twins import DictTable, assert_same

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
    "optimizer", [SGD(), Adagrad(first_sum=0.1), RowWiseAdagrad(), Adam(), FTRL(l1=0.01)], ids=lambda o: o.name
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


def test_a_fused_step_is_a_look_up_and_a_step(device, tmp_path):
    from dovetail.embedding.device.fused import FusedStep

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
