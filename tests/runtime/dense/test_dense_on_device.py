"""Dense optimizers as operations of PyTorch's: the same steps as the kernels'."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from dovetail.runtime.dense.optimizer import (
    DENSE_OPTIMIZERS,
    GroupedOptimizer,
    ParameterGroup,
    from_device,
    make_dense_optimizer,
    to_device,
)
from dovetail.runtime.trainer.dense_step import StepLaunches
from dovetail.spec.run_sections import RunOptimizer

SIZE = 1037
CPU = torch.device("cpu")


def vector(seed):
    return np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)


def grouped(name, *, alike):
    """Return an optimizer that has other rates in some parts, unless all are alike."""
    bounds = ((0, SIZE, 0.01),) if alike else ((0, 10, 0.01), (10, 600, 0.05), (600, SIZE, 0.002))
    return GroupedOptimizer(
        [ParameterGroup(a, b, make_dense_optimizer(name, learning_rate=rate)) for a, b, rate in bounds]
    )


@pytest.mark.parametrize("name", DENSE_OPTIMIZERS)
@pytest.mark.parametrize("clip_value", [None, 0.3])
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "groups"])
def test_twenty_steps_are_those_of_the_kernels(name, clip_value, alike):
    optimizer = grouped(name, alike=alike)
    values, state = vector(0), optimizer.first_state(SIZE)
    there = torch.from_numpy(values.copy())
    state_there = to_device({key: each.copy() for key, each in state.items()}, CPU)
    for number in range(1, 21):
        gradient = vector(number)
        when = {"step_number": number, "factor": 1 / (1 + number / 10)}
        how = {"scale": 0.5, "clip_value": clip_value}
        optimizer.step(values, gradient.copy(), state, **when, **how)
        numbers = optimizer.numbers(**when)
        optimizer.step_on_device(there, torch.from_numpy(gradient), state_there, numbers=numbers, **how)

    np.testing.assert_allclose(there.numpy(), values, rtol=1e-5, atol=1e-6)
    back = from_device(state_there)
    assert back.keys() == state.keys()
    for key, each in state.items():
        np.testing.assert_allclose(back[key], each, rtol=1e-5, atol=1e-6)


def test_a_clipped_step_is_another_and_what_is_not_of_a_part_stays():
    part = GroupedOptimizer([ParameterGroup(2, 4, make_dense_optimizer("sgd", learning_rate=1.0))])
    values, gradients = torch.zeros(6), torch.tensor([5.0, 5.0, 5.0, -0.1, 5.0, 5.0])
    part.step_on_device(values, gradients, {}, numbers=[(1.0,)], scale=2.0, clip_value=1.0)

    torch.testing.assert_close(values, torch.tensor([0.0, 0.0, -1.0, 0.2, 0.0, 0.0]))


@pytest.mark.parametrize("name", DENSE_OPTIMIZERS)
def test_steps_launched_again_from_numbers_on_the_device_are_those_of_the_kernels(name):
    optimizer, settings = grouped(name, alike=False), RunOptimizer(clip_norm=3.0)
    values, state = vector(0), optimizer.first_state(SIZE)
    there, gradients = torch.from_numpy(values.copy()), torch.zeros(SIZE)
    state_there, replayed = to_device({key: each.copy() for key, each in state.items()}, CPU), []

    def record(launch):  # as a CUDA graph: what is done again knows no number of the step it came from
        return lambda: replayed.append(launch())

    launches = StepLaunches(optimizer, settings, state_there, record=record, quiet=nullcontext)
    for number in range(1, 21):
        gradient, factor, scale = vector(number), 1 / (1 + number / 10), 0.5 / number
        norm = float(np.linalg.norm(gradient.astype(np.float64))) * scale
        clipped = scale * min(1.0, 3.0 / (norm + 1e-6))
        optimizer.step(values, gradient.copy(), state, step_number=number, factor=factor, scale=clipped)
        gradients.copy_(torch.from_numpy(gradient))
        launches.take(there, gradients, scale=scale, factor=factor, step_number=number)
        assert not gradients.any()

    assert len(replayed) == 20 - 3
    np.testing.assert_allclose(there.numpy(), values, rtol=1e-5, atol=1e-6)
