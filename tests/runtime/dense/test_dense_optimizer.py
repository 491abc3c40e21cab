"""Dense optimizers against `torch.optim` on the same gradients."""

import numpy as np
import pytest
import torch

from dovetail.runtime.dense.kernels import add_into, sum_of_squares
from dovetail.runtime.dense.optimizer import DENSE_OPTIMIZERS, described, make_dense_optimizer
from dovetail.runtime.errors import TrainingError

SIZE = 1037  # no multiple of any vector width
THEIRS = {
    "sgd": lambda p, rate: torch.optim.SGD(p, lr=rate),
    "momentum": lambda p, rate: torch.optim.SGD(p, lr=rate, momentum=0.9),
    "adagrad": lambda p, rate: torch.optim.Adagrad(p, lr=rate),
    "adam": lambda p, rate: torch.optim.Adam(p, lr=rate),
    "adamw": lambda p, rate: torch.optim.AdamW(p, lr=rate),
}


def vector(seed, size=SIZE):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def stepped(name, *, gradient=None, **how):
    """Return 0, 1, ... after the first step with a gradient."""
    gradient = vector(1) if gradient is None else gradient
    optimizer = make_dense_optimizer(name, learning_rate=0.1)
    values, state = np.arange(len(gradient), dtype=np.float32), optimizer.first_state(len(gradient))
    optimizer.step(values, gradient, state, step_number=1, scale=1.0, factor=1.0, **how)
    return values


@pytest.mark.parametrize("name", DENSE_OPTIMIZERS)
@pytest.mark.parametrize("clip_value", [None, 0.01])
def test_a_hundred_steps_are_those_of_pytorch(name, clip_value):
    rate, samples = 0.01, 64
    ours = make_dense_optimizer(name, learning_rate=rate)
    values, state = vector(0), ours.first_state(SIZE)
    weight = torch.nn.Parameter(torch.from_numpy(values.copy()))
    theirs = THEIRS[name]([weight], rate)
    for number in range(1, 101):
        gradient, factor = vector(number), 1 / (1 + number / 20)
        ours.step(values, gradient, state, step_number=number, scale=1 / samples, factor=factor, clip_value=clip_value)
        weight.grad = torch.from_numpy(gradient) / samples
        if clip_value is not None:
            torch.nn.utils.clip_grad_value_([weight], clip_value)
        theirs.param_groups[0]["lr"] = rate * factor
        theirs.step()

    np.testing.assert_allclose(values, weight.detach().numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", DENSE_OPTIMIZERS)
def test_slices_step_apart_as_the_whole(name):
    optimizer = make_dense_optimizer(name, learning_rate=0.01)
    whole, cut = vector(0), vector(0)
    state, states = optimizer.first_state(SIZE), [optimizer.first_state(333), optimizer.first_state(SIZE - 333)]
    for number in range(1, 6):
        gradient, how = vector(number), {"step_number": number, "scale": 0.5, "factor": 1.0}
        optimizer.step(whole, gradient, state, **how)
        optimizer.step(cut[:333], gradient[:333], states[0], **how)
        optimizer.step(cut[333:], gradient[333:], states[1], **how)

    assert whole.tobytes() == cut.tobytes()
    for key in optimizer.state_vectors():
        assert state[key].tobytes() == np.concatenate([part[key] for part in states]).tobytes()


@pytest.mark.parametrize("name", DENSE_OPTIMIZERS)
def test_read_only_gradients_and_no_parameters_at_all_are_fine(name):
    frame = np.frombuffer(vector(1).tobytes(), dtype=np.float32)

    assert stepped(name, gradient=frame).tobytes() == stepped(name).tobytes()
    assert len(stepped(name, gradient=frame[:0])) == 0


def test_a_gradient_that_is_not_a_number_is_not_clipped_away():
    gradient = np.array([np.nan, np.inf, -5, 0.5], dtype=np.float32)

    # 0 - 0.1 nan, 1 - 0.1 (clipped to 1), 2 + 0.1 (clipped to -1), 3 - 0.1 0.5
    np.testing.assert_allclose(stepped("sgd", gradient=gradient, clip_value=1.0), [np.nan, 0.9, 2.1, 2.95], rtol=1e-6)


def test_the_first_step_of_adam_is_the_rate_whatever_the_gradient():
    gradient = np.array([1e-3, -5.0, 1e3], dtype=np.float32)

    np.testing.assert_allclose(stepped("adam", gradient=gradient), [-0.1, 1.1, 1.9], rtol=1e-4)


def test_an_unknown_optimizer_is_refused_with_the_nearest_and_with_all():
    with pytest.raises(TrainingError, match="no dense optimizer `adamm`") as caught:
        make_dense_optimizer("adamm", learning_rate=0.1)

    assert "did you mean `adam`?" in caught.value.hint
    assert "`sgd`, `momentum`, `adagrad`, `adam`, `adamw`" in caught.value.hint


def test_an_optimizer_unlike_all_others_is_refused_with_one_list():
    with pytest.raises(TrainingError) as caught:
        make_dense_optimizer("zzz", learning_rate=0.1)

    assert caught.value.hint == "known are: `sgd`, `momentum`, `adagrad`, `adam`, `adamw`"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sgd", {"learning_rate": 0.0}, "learning_rate = 0.0"),
        ("sgd", {"learning_rate": float("nan")}, "learning_rate = nan"),
        ("sgd", {"learning_rate": 0.1, "beta1": 0.9}, "no setting `beta1`"),
        ("adam", {"learning_rate": 0.1, "beta2": 1.0}, "beta2 = 1.0"),
        ("adamw", {"learning_rate": 0.1, "weight_decay": -1.0}, "weight_decay = -1.0"),
    ],
)
def test_settings_that_cannot_train_are_refused(name, settings, message):
    with pytest.raises(TrainingError, match=message):
        make_dense_optimizer(name, **settings)


def test_vectors_of_another_length_or_kind_are_refused():
    optimizer, values = make_dense_optimizer("sgd", learning_rate=0.1), vector(0)
    for wrong in (vector(1, SIZE - 1), vector(1).astype(np.float64), vector(1).reshape(1, -1)):
        with pytest.raises(TrainingError, match=f"beside {SIZE} parameters"):
            optimizer.step(values, wrong, {}, step_number=1, scale=1.0, factor=1.0)


@pytest.mark.parametrize("name", DENSE_OPTIMIZERS)
def test_what_is_described_can_be_made_again(name):
    optimizer = make_dense_optimizer(name, learning_rate=0.25)

    assert make_dense_optimizer(**described(optimizer)) == optimizer


@pytest.mark.parametrize("size", [0, 1, 7, 8, 1037])
def test_squares_are_summed_in_float64(size):
    numbers = vector(3, size)

    assert sum_of_squares(numbers) == pytest.approx(float((numbers.astype(np.float64) ** 2).sum()), rel=1e-14)
    assert sum_of_squares(np.full(3, 2e38, dtype=np.float32)) == pytest.approx(1.2e77, rel=1e-6)


def test_a_part_is_added_in_place():
    total, part = vector(1), np.frombuffer(vector(2).tobytes(), dtype=np.float32)
    add_into(total, part)

    assert total.tobytes() == (vector(1) + vector(2)).tobytes()
