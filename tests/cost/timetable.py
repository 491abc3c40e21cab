"""One forward, one backward, played operation by operation: what the pipeline formulas are checked against.

Stage s of S runs micro-batch j forward at step s + 2 j and backward at step 2 S - 1 - s + 2 j. Before a step it settles
with the neighbour that ran the matching half: first the gradient that was made a step ago goes back, then the
activation that was made a step ago goes on. An operation starts when the one before it on its stage has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

Operation = tuple[str, int, int]
"""forward | backward | send | receive, the cut or stage it belongs to, and which one of its kind it is."""


def operations(stage: int, num_stages: int, num_micro_batches: int) -> list[Operation]:
    """What one stage does, in order; messages over cut c are numbered 2 j (activation) and 2 j + 1 (gradient)."""
    forward_at = {stage + 2 * j: j for j in range(num_micro_batches)}
    backward_at = {2 * num_stages - 1 - stage + 2 * j: j for j in range(num_micro_batches)}
    listed: list[Operation] = []
    for step in range(2 * (num_micro_batches + num_stages)):
        if stage > 0 and step - 1 in backward_at:
            listed.append(("send", stage - 1, 2 * backward_at[step - 1] + 1))
        if stage > 0 and step in forward_at:
            listed.append(("receive", stage - 1, 2 * forward_at[step]))
        if stage < num_stages - 1 and step in backward_at:
            listed.append(("receive", stage, 2 * backward_at[step] + 1))
        if stage < num_stages - 1 and step - 1 in forward_at:
            listed.append(("send", stage, 2 * forward_at[step - 1]))
        if step in forward_at:
            listed.append(("forward", stage, forward_at[step]))
        if step in backward_at:
            listed.append(("backward", stage, backward_at[step]))
    return listed


def play(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    message_s: Sequence[float],
    buffered: Sequence[bool],
    num_micro_batches: int,
) -> float:
    """Return when the last backward pass ends; `message_s` and `buffered` are one a cut.

    Over a buffered cut a sender goes on at once and the message arrives `message_s` later, whether or not the receiver
    is there; over any other both ends are held from when the later one has come until the message is across.
    """
    num_stages = len(forward_s)
    todo = [operations(stage, num_stages, num_micro_batches) for stage in range(num_stages)]
    now, done = [0.0] * num_stages, [0] * num_stages
    came: dict[tuple[str, int, int], float] = {}
    arrives: dict[tuple[int, int], float] = {}
    last_backward = 0.0
    moved = True
    while moved:
        moved = False
        for stage in range(num_stages):
            while done[stage] < len(todo[stage]):
                kind, place, number = todo[stage][done[stage]]
                if kind in ("forward", "backward"):
                    now[stage] += (forward_s if kind == "forward" else backward_s)[stage]
                    last_backward = max(last_backward, now[stage] if kind == "backward" else 0.0)
                elif buffered[place] and kind == "send":
                    arrives[place, number] = now[stage] + message_s[place]
                elif buffered[place]:
                    if (place, number) not in arrives:
                        break
                    now[stage] = max(now[stage], arrives[place, number])
                else:
                    came.setdefault((kind, place, number), now[stage])
                    other = came.get(("receive" if kind == "send" else "send", place, number))
                    if other is None:
                        break
                    now[stage] = max(came[kind, place, number], other) + message_s[place]
                done[stage] += 1
                moved = True
    assert done == [len(listed) for listed in todo], "the timetable is stuck"
    return last_backward
