"""The device tier's kernels: those in torch against plain Python, those in Triton against those in torch."""

import itertools

import numpy as np
import pytest
import torch

from dovetail.embedding import first_values
from dovetail.embedding.device import torch_kernels
from dovetail.embedding.device_tier import kernels_for
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


@needs_cuda
@pytest.mark.parametrize("name", sorted(torch_kernels.STEPS))
@pytest.mark.parametrize("width", [5, 16])
def test_triton_steps_rows_as_torch_does(name, width):
    triton_kernels = kernels_for(torch.device("cuda"))
    assert triton_kernels is not torch_kernels
    state_width = {"sgd": 0, "adagrad": width, "row-wise-adagrad": 1, "adam": 2 * width + 2, "ftrl": 2 * width}[name]
    torch.manual_seed(0)
    rows = torch.rand(40, width + state_width, device="cuda")
    slots = torch.randperm(39, dtype=torch.int32, device="cuda")[:30]
    sums = torch.randn(30, width, device="cuda")
    settings = torch.tensor([0.05, 0.9, 0.99, 1e-6], device="cuda")
    outcomes = []
    for kernels in (torch_kernels, triton_kernels):
        mine, states = rows.clone(), torch.zeros(40, dtype=torch.int8, device="cuda")
        kernels.step(
            name, mine, states, slots, sums, settings, a_count(20, "cuda") if kernels is triton_kernels else None
        )
        outcomes.append((mine.cpu(), states.cpu()))
    first = slots[:20].long().cpu() if name in triton_kernels.RULES else slots.long().cpu()
    assert torch.equal(outcomes[0][0][first], outcomes[1][0][first])
    assert torch.equal(outcomes[0][1][first], outcomes[1][1][first])
    if name in triton_kernels.RULES:  # beyond the count nothing is touched
        rest = slots[20:].long()
        assert torch.equal(outcomes[1][0][rest.cpu()], rows[rest].cpu())
