"""The section of a run file about where the rows of embedding tables lie."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from dovetail.errors import SpecError
from dovetail.spec.checks import check_whole_number
from dovetail.spec.run_section import Meta, Section

Place = Literal["servers", "device"]


class RunTable(Section, frozen=True):
    """Where the rows of embedding tables lie: on servers, or in the memory of one GPU over host memory and disk."""

    place: Annotated[
        Place, Meta(description="servers, or device: one process trains, hot rows lie in the memory of its GPU")
    ] = "servers"
    device: Annotated[str, Meta(description='with device: where rows and layers are, "cuda", "cuda:1" or "cpu"')] = (
        "cuda"
    )
    device_bytes: Annotated[
        int, Meta(description="with device: memory for rows there, over all tables; host memory is servers.host_bytes")
    ] = 1 << 30
    layer_bytes: Annotated[
        dict[str, int],
        Meta(description="with device: memory for rows of a layer's table, by its name; others share the rest evenly"),
    ] = msgspec.field(default_factory=dict)
    look_ahead: Annotated[
        int, Meta(description="with device: batches whose rows are brought there before they are trained on")
    ] = 16
    graph: Annotated[
        bool, Meta(description="with device on CUDA: steps are captured as a CUDA graph where the model allows it")
    ] = True

    def __post_init__(self) -> None:
        """Refuse no memory, and no batches."""
        check_whole_number(self, "device_bytes", at_least=1)
        check_whole_number(self, "look_ahead", at_least=1)
        for name, rows_bytes in self.layer_bytes.items():
            if not 1 <= rows_bytes <= self.device_bytes:
                raise SpecError(
                    f"is {rows_bytes}, and device_bytes is {self.device_bytes}",
                    key=f"layer_bytes.{name}",
                    hint="give at least 1, and no more than device_bytes has for all",
                )
