"""Stages of a run: which consecutive layers of the model some of the workers hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from dovetail.errors import SpecError
from dovetail.spec.checks import check_whole_number
from dovetail.spec.run_section import Meta, Section


class RunStage(Section, frozen=True):
    """A run of consecutive layers, as in a plan."""

    first_layer: Annotated[int, Meta(description="the position of the stage's first layer, from 0")]
    last_layer: Annotated[int, Meta(description="the position of the stage's last layer, itself included")]
    resource: Annotated[str, Meta(description="the type that a plan puts it on")] = ""

    def __post_init__(self) -> None:
        """Refuse a stage without layers."""
        check_whole_number(self, "first_layer", at_least=0)
        check_whole_number(self, "last_layer", at_least=self.first_layer)


def check_stages(stages: Sequence[RunStage], stages_of_workers: Sequence[int]) -> None:
    """Refuse stages with gaps between them, or that nobody works in."""
    expected = 0
    for number, stage in enumerate(stages):
        if stage.first_layer != expected:
            raise SpecError(
                f"{number} begins with layer {stage.first_layer}, and layer {expected} is next",
                key="stage",
                hint="every layer is in exactly one stage, in the order of the layers",
            )
        expected = stage.last_layer + 1
    number_of_stages = max(1, len(stages))
    for number in range(number_of_stages):
        if number not in stages_of_workers:
            raise SpecError(f"{number} has no worker", key="stage", hint=f"add a [[worker]] with stage = {number}")
    beyond = [stage for stage in stages_of_workers if stage >= number_of_stages]
    if beyond:
        raise SpecError(f"has one of stage {beyond[0]}", key="worker", hint=f"the last stage is {number_of_stages - 1}")
