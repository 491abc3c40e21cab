"""What a sender keeps back, through what does not count and what is done again."""

import numpy as np

from dovetail.codecs.feedback import Feedback
from dovetail.codecs.payload import pack, unpack
from dovetail.codecs.registry import codec_of

ALL = slice(0, 100)


def send(feedback: Feedback, values: np.ndarray, step: int) -> np.ndarray:
    feedback.begin(step)
    return unpack(pack(values, codec_of(1), seed=step, residual=feedback.now), values.shape)


def gradients(count: int) -> list[np.ndarray]:
    draw = np.random.default_rng(6)
    return [draw.standard_normal(100).astype(np.float32) for _ in range(count)]


def test_what_does_not_count_is_taken_back():
    feedback, (first, second, third) = Feedback(100), gradients(3)
    arrived = send(feedback, first, 0).copy()
    send(feedback, second, 1)
    feedback.take_back(ALL)
    arrived += send(feedback, third, 1)

    np.testing.assert_allclose(arrived + feedback.now, first + third, atol=1e-5)


def test_a_step_that_is_done_again_begins_with_what_was_kept_before_it():
    feedback, (first, second, third) = Feedback(100), gradients(3)
    send(feedback, first, 0)
    kept = feedback.now.copy()
    send(feedback, second, 1)
    send(feedback, third, 1)

    np.testing.assert_array_equal(feedback.at(1), kept)
    feedback.go_back(1)
    np.testing.assert_array_equal(feedback.now, kept)


def test_a_step_that_counts_is_not_gone_back_behind():
    feedback, (first,) = Feedback(100), gradients(1)
    send(feedback, first, 0)
    kept = feedback.now.copy()

    feedback.go_back(1)

    np.testing.assert_array_equal(feedback.now, kept)
    np.testing.assert_array_equal(feedback.at(1), kept)


def test_what_is_given_away_is_kept_no_more():
    feedback, (first,) = Feedback(100), gradients(1)
    arrived = send(feedback, first, 0)

    given = feedback.clear()

    np.testing.assert_allclose(arrived + given, first, atol=1e-5)
    assert not feedback.now.any()
