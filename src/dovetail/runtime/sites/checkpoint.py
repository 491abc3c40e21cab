"""What a checkpoint has of the exchanges between sites.

That is the base of rows and dense parameters that are ahead of it, and rounds that are on their way.

    sites-0.safetensors    one file a server, beside the parameters
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from dovetail.runtime.checkpoint import RunManifest, checksum_of, load_tensors, save_tensors
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.sites.messages import RoundHead
from dovetail.runtime.sites.outer_step import OnItsWay, OuterStep
from dovetail.runtime.sites.rounds import Shapes, decode

NAMES = ("base", "sent", "rounds", "touched")
OTHER = "resume from another checkpoint"


class SavedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the exchanges stood."""

    sites: tuple[str, ...]
    site: int
    num_servers: int
    exchanges: int
    next_round: int
    last_cut: int
    dense_rounds: int
    is_finished: bool
    heads: tuple[RoundHead, ...]


def file_of(server: int) -> str:
    """Return the file of a server in a checkpoint's folder."""
    return f"sites-{server}.safetensors"


def save(
    folder: Path, server: int, outer_step: OuterStep, *, sites: Sequence[str], site: int, num_servers: int
) -> None:
    """Write the state of the exchanges."""
    dense = outer_step.dense
    arrays: dict[str, NDArray[Any]] = {"base": dense.base, "velocity": dense.velocity, "sent": dense.sent}
    for number, rows in enumerate(outer_step.rows):
        count = rows.index.count
        arrays[f"table-{number}-keys"] = rows.index.keys.copy()
        arrays |= {f"table-{number}-{name}": getattr(rows, name)[:count].copy() for name in NAMES}
    for number, each in enumerate(outer_step.on_their_way):
        arrays |= {f"round-{number}-{place}": array for place, array in enumerate(each.arrays)}
    heads = [msgspec.structs.replace(each.head, num_arrays=len(each.arrays)) for each in outer_step.on_their_way]
    facts = SavedFacts(
        sites=tuple(sites),
        site=site,
        num_servers=num_servers,
        exchanges=outer_step.exchanges,
        next_round=outer_step.next_round,
        last_cut=outer_step.last_cut,
        dense_rounds=dense.rounds,
        heads=tuple(heads),
        is_finished=outer_step.is_finished,
    )
    path = folder / file_of(server)
    save_tensors(
        path,
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        {"facts": msgspec.json.encode(facts).decode()},
    )
    outer_step.saved()


def load(
    folder: Path,
    server: int,
    outer_step: OuterStep,
    shapes: Shapes,
    *,
    sites: Sequence[str],
    site: int,
    num_servers: int,
) -> None:
    """Take up the state of the exchanges; before the first step there is none."""
    outer_step.stand()
    manifest, name = RunManifest.read(folder), file_of(server)
    if name not in manifest.files:
        if manifest.step:
            raise TrainingError(f"{folder} has nothing of exchanges between sites", hint="it is of a run without sites")
        outer_step.loaded(0)
        return
    path = folder / name
    try:
        if checksum_of(path) != manifest.files[name]:
            raise ValueError("it has a wrong checksum")
        arrays, said = load_tensors(path)
        facts = msgspec.json.decode(said["facts"], type=SavedFacts)
    except (SafetensorError, KeyError, ValueError, OSError, msgspec.MsgspecError) as error:
        raise TrainingError(f"{path} cannot be read: {error}", hint=OTHER) from None
    if (facts.sites, facts.site, facts.num_servers) != (tuple(sites), site, num_servers):
        raise TrainingError(
            f"{folder} is of site {facts.sites[facts.site]} of {', '.join(facts.sites)} with {facts.num_servers} "
            f"servers, and this is {sites[site]} of {', '.join(sites)} with {num_servers}",
            hint="go on with the sites and servers that the run began with",
        )
    dense = outer_step.dense
    dense.base, dense.velocity, dense.sent = arrays["base"], arrays["velocity"], arrays["sent"]
    dense.rounds = facts.dense_rounds
    for number, rows in enumerate(outer_step.rows):
        rows.index.add(arrays[f"table-{number}-keys"])
        for each in NAMES:
            setattr(rows, each, arrays[f"table-{number}-{each}"])
    for number, head in enumerate(facts.heads):
        of_round = tuple(arrays[f"round-{number}-{place}"] for place in range(head.num_arrays))
        part = decode(head, of_round, shapes, who=sites[site])
        outer_step.on_their_way.append(OnItsWay(msgspec.structs.replace(head, num_arrays=0), of_round, part))
    outer_step.next_round, outer_step.last_cut = facts.next_round, facts.last_cut
    outer_step.loaded(facts.exchanges, is_finished=facts.is_finished)
