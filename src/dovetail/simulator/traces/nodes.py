"""Nodes as people write them on a command line: `v100:4x2,k80:4x6`."""

from __future__ import annotations

import re

from dovetail.errors import SpecError
from dovetail.spec.workload import NodeGroup

_GROUP = re.compile(r"([^:,\s]+):(\d+)x(\d+)")


def parse_nodes(text: str) -> tuple[NodeGroup, ...]:
    """Return the nodes in `TYPE:WORKERSxCOUNT[,...]`: `v100:4x2` is two nodes of four V100 each."""
    groups = []
    for part in text.split(","):
        found = _GROUP.fullmatch(part.strip())
        if not found or int(found[2]) < 1 or int(found[3]) < 1:
            raise SpecError(
                f"`{part.strip()}` does not say which nodes there are",
                hint="write TYPE:WORKERSxCOUNT, e.g. v100:4x2,k80:4x6 for two nodes of four V100 and six of four K80",
            )
        groups.append(NodeGroup(type=found[1], workers=int(found[2]), count=int(found[3])))
    return tuple(groups)
