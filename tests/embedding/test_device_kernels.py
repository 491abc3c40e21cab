"""The device tier's kernels: those in torch against plain Python, those in Triton against those in torch."""

import itertools

import numpy as np
import pytest
import torch

from dovetail.embedding import first_values, make_row_optimizer
from dovetail.embedding.row_metadata import CHANGED
from dovetail.embedding.tiers.device import torch_kernels
from dovetail.embedding.tiers.device.prefetched_batch import (
    LONG_ROW,
    MOST_TOGETHER,
    BatchPlaces,
    group,
    layout_of,
    places_size,
)
from dovetail.embedding.tiers.device.tier import kernels_for
from dovetail.embedding.tiers.device.torch_kernels import TOLD
from dovetail.splitmix import GOLDEN_NUMBER, mix

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]


def an_index(device, capacity=500, seed=0):
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(-(2**63), 2**63 - 1, size=capacity))
    slot_keys = torch.from_numpy(keys).to(device)
    return torch.zeros(int(capacity * 1.3) + 2, dtype=torch.int32, device=device), slot_keys


def a_count(number, device):
    return torch.full((1,), number, dtype=torch.int32, device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_keys_that_were_put_in_are_found_and_those_taken_out_are_not(device):
    kernels = kernels_for(torch.device(device))
    index, slot_keys = an_index(device)
    half = len(slot_keys) // 2
    slots = torch.arange(len(slot_keys), dtype=torch.int32, device=device)

    kernels.insert(index, slot_keys, slots[:half])
    kernels.insert(index, slot_keys, slots[half:])
    kernels.erase(index, slot_keys, slots[: half // 2])

    found = kernels.find(index, slot_keys, torch.cat([slot_keys, slot_keys + 1]))
    assert (found[: half // 2] == -1).all()
    assert (found[half // 2 : len(slots)] == slots[half // 2 :]).all()
    known = set(slot_keys.tolist())
    for key, slot in zip((slot_keys + 1).tolist(), found[len(slots) :].tolist(), strict=True):
        assert (slot == -1) or key in known


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [1, 7, 16])
def test_first_values_are_those_of_the_host(device, width):
    seed, scale = 12345, 0.123456789
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, size=100)
    rows = torch.full((120, 2 * width), torch.nan, device=device)
    slots = torch.randperm(120, dtype=torch.int32)[:100].to(device)
    mixed = int(mix(np.uint64(seed) ^ np.uint64(GOLDEN_NUMBER)))

    kernels_for(torch.device(device)).fill_first(
        *(rows, slots, torch.from_numpy(keys).to(device), width, mixed - 2**64 if mixed >= 2**63 else mixed),
        *(torch.tensor(scale, dtype=torch.float64, device=device), 0.25),
    )

    got = rows[slots.long()].cpu().numpy()
    assert got[:, :width].tobytes() == first_values(keys, width=width, seed=seed, scale=scale).tobytes()
    assert (got[:, width:] == 0.25).all()


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_summed_one_after_the_other(device):
    rng = np.random.default_rng(2)
    lengths = np.array([1, 0, 3, 900, 1, 17, 40])
    source = rng.normal(size=(50, 9)).astype(np.float32)
    at = rng.integers(0, 50, size=lengths.sum()).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    out = torch.full((len(lengths), 6), torch.nan, device=device)

    kernels_for(torch.device(device)).sum_rows(
        *(torch.from_numpy(array).to(device) for array in (source, at, starts)), 6, out, a_count(len(lengths), device)
    )

    for number, (first, last) in enumerate(itertools.pairwise(starts)):
        total = np.zeros(6, dtype=np.float32)
        for position in range(first, last):
            row = source[at[position], :6]
            total = row.copy() if position == first else total + row
        assert out[number].cpu().numpy().tobytes() == total.tobytes()


def some_batches(sizes, rng):
    """Return keys of batches: few distinct ones, some of them very often."""
    return [np.where(rng.random(size) < 0.4, 7, rng.integers(-20, 40, size=size)) for size in sizes]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", [(1,), (300,), (5, 300, 1, 129), (128,) * MOST_TOGETHER], ids=str)
def test_batches_are_found_together_as_one_by_one(device, sizes):
    rng = np.random.default_rng(len(sizes))
    batches = some_batches(sizes, rng)
    kernels, numbers = kernels_for(torch.device(device)), [11 + 2 * b for b in range(len(sizes))]
    index, slot_keys = torch.zeros(202, dtype=torch.int32, device=device), torch.arange(-20, 80, device=device)
    needed = torch.full((100,), 12, dtype=torch.int32, device=device)
    known = torch.arange(0, 30, dtype=torch.int32, device=device)  # keys -20 to 9, slot = key + 20
    kernels.insert(index, slot_keys, known)
    grouped = group(torch.from_numpy(np.concatenate(batches)).to(device), layout_of(sizes, torch.device(device)))
    slots = torch.full((sum(sizes),), -5, dtype=torch.int32, device=device)
    told = torch.zeros(TOLD + sum(sizes), dtype=torch.int64, device=device)
    missing = torch.zeros((2, sum(sizes)), dtype=torch.int32, device=device)

    kernels.look(index, slot_keys, needed, grouped, torch.tensor(numbers, device=device), slots, told, missing)

    last = {key: number for number, keys in zip(numbers, batches, strict=True) for key in keys.tolist()}
    count = int(told[0])
    keys = told[TOLD : TOLD + count].tolist()
    assert sorted(keys) == sorted(key for key in last if key >= 10)
    assert missing[1, :count].tolist() == [last[key] for key in keys]
    assert needed[:30].tolist() == [max(12, last.get(key, 0)) for key in range(-20, 10)]

    facts = [torch.zeros(100, dtype=dtype, device=device) for dtype in (torch.int32, torch.int16, torch.int8)]
    new = torch.arange(99, 99 - count, -1, dtype=torch.int32, device=device)
    kernels.settle(index, slot_keys, needed, *facts, slots, told[TOLD : TOLD + count], missing, new, -1)
    slot_of = {key: key + 20 for key in range(-20, 10)} | dict(zip(keys, new.tolist(), strict=True))
    assert kernels.find(index, slot_keys, torch.tensor(keys, dtype=torch.int64, device=device)).tolist() == new.tolist()
    assert needed[new.long()].tolist() == missing[1, :count].tolist()
    assert (facts[0][new.long()] == -1).all()

    out = torch.zeros(sum(map(places_size, sizes)), dtype=torch.int32, device=device)
    kernels.place(grouped, slots, 99, out)
    for keys, part in zip(batches, out.cpu().split(list(map(places_size, sizes))), strict=True):
        places = BatchPlaces(part, len(keys), len(set(keys.tolist())))
        by_key = {key: [i for i in range(len(keys)) if keys[i] == key] for key in sorted(set(keys.tolist()))}
        assert places.slots.tolist() == [slot_of[key] for key in keys.tolist()]
        assert places.order.tolist() == [i for asking in by_key.values() for i in asking]
        assert places.unique.tolist() == [slot_of[key] for key in by_key] + [99] * (len(keys) - len(by_key))
        lengths = [len(asking) for asking in by_key.values()]
        starts = np.cumsum([0, *lengths]).tolist()
        assert places.starts.tolist() == starts + [len(keys)] * (len(keys) - len(by_key))
        assert places.num.tolist() == [len(by_key)]
        long = [u for u, length in enumerate(lengths) if length > LONG_ROW]
        assert sorted(places.long[1 : 1 + int(places.long[0])].tolist()) == long


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(torch_kernels.STEPS))
@pytest.mark.parametrize("width", [5, 16])
def test_rows_are_stepped_by_sums_as_torch_does_it(device, name, width):
    state_width = make_row_optimizer(name).state_width(width)
    torch.manual_seed(0)
    (keys,) = some_batches((400,), np.random.default_rng(3))
    grouped = group(torch.from_numpy(keys), layout_of((400,), torch.device("cpu")))
    numbers = torch.zeros(places_size(400), dtype=torch.int32)
    num_unique = int(grouped.numbers[-1])
    torch_kernels.place(grouped, torch.randperm(num_unique, dtype=torch.int32), num_unique, numbers)
    rows, gradients = torch.rand(num_unique + 1, width + state_width), torch.randn(400, width)
    settings = torch.tensor([0.05, 0.9, 0.99, 1e-6])
    outcomes = []
    for where, kernels in (("cpu", torch_kernels), (device, kernels_for(torch.device(device)))):
        places = BatchPlaces(numbers.to(where), 400, num_unique)
        mine, states = rows.clone().to(where), torch.zeros(num_unique + 1, dtype=torch.int8, device=where)
        kernels.step_sums(
            *(name, mine, states, places.unique[:num_unique], places, places.order),
            *(gradients.to(where), settings.to(where)),
        )
        outcomes.append((mine.cpu(), states.cpu()))
    assert torch.equal(outcomes[0][0][:num_unique], outcomes[1][0][:num_unique])
    assert torch.equal(outcomes[0][1][:num_unique], outcomes[1][1][:num_unique])
    assert (outcomes[1][1][:num_unique] == CHANGED).all()
    assert torch.equal(outcomes[1][0][num_unique], rows[num_unique])  # the slot that is nobody's
