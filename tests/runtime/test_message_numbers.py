"""Numbers that nothing has are refused where an envelope is read."""

from __future__ import annotations

import msgspec
import pytest

from dovetail.runtime.messages import Alive, Done, Message, Pull, Report, Span
from dovetail.transport import EnvelopeCodec, WireError
from dovetail.transport.envelope import PREFIX

CODEC = EnvelopeCodec(Message)


@pytest.mark.parametrize(
    "body",
    [
        ["Pull", -2, 0, [], False],
        ["Pull", 1 << 60, 0, [], False],
        ["Pull", 1, 0, [-5], False],
        ["Alive", "worker-0", None, float("nan"), 0.0],
        ["Alive", "worker-0", None, 0.0, float("inf")],
        ["Alive", "worker-0", None, -1.0, 0.0],
        ["Done", "w", 1, 0, 0, 1, 0.0, 0.0, 0.0, 0.0, 0, 0, 0.0, [["compute", 0.0, float("nan"), 0]]],
    ],
)
def test_a_number_that_cannot_be_is_refused(body):
    with pytest.raises(WireError, match="makes no sense"):
        CODEC.unpack([PREFIX + msgspec.msgpack.encode([1, body, []])])


@pytest.mark.parametrize(
    "message",
    [
        Pull(generation=0, version=-1, tables=(0, 1), dense=True),
        Alive(name="worker-0", most_samples=None, stuck_s=0.0),
        Done(
            name="w", generation=1, step=0, task=0, samples=1, loss=float("inf"), compute_s=0.1, fixed_s=0, wait_s=0.0,
            spans=(Span("compute", 1.0, 2.0, 0),),
        ),
    ],
)  # fmt: skip
def test_a_model_that_diverges_is_told_of(message):
    assert CODEC.unpack(CODEC.pack(1, message)).message == message


def test_a_report_before_the_first_loss_travels():
    report = Report(
        state="running", generation=1, step=0, epoch=0, samples=0, total_samples=1, samples_per_s=0.0,
        loss=float("nan"), auc=float("nan"), checkpoint_step=0, workers=(), servers=(), events=(), next_event=0,
    )  # fmt: skip
    envelope = CODEC.unpack(CODEC.pack(1, report))
    assert envelope.message.loss != envelope.message.loss
