"""How the memory for rows on a device is divided among tables."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.runtime.errors import TrainingError
from dovetail.spec.run_table import RunTable


def bytes_by_table(settings: RunTable, names: Sequence[str]) -> list[int]:
    """Return the memory for rows of each table: what its layer is given by name, else an even share of the rest."""
    plain = [name.removeprefix("layers.").replace(".", "_") for name in names]
    given = {name.replace(".", "_"): rows_bytes for name, rows_bytes in settings.layer_bytes.items()}
    if unknown := [name for name in settings.layer_bytes if name.replace(".", "_") not in plain]:
        raise TrainingError(
            f"table.layer_bytes names `{unknown[0]}`, which is no layer with a table",
            hint=f"such layers are {', '.join(plain) or 'none'}",
        )
    others = [name for name in plain if name not in given]
    rest = settings.device_bytes - sum(given.values())
    if rest < len(others):
        raise TrainingError(
            f"table.layer_bytes gives {sum(given.values())} bytes, and table.device_bytes = {settings.device_bytes} "
            f"leaves too little for {len(others)} other tables",
            hint="raise table.device_bytes, or name fewer layers",
        )
    return [given[name] if name in given else rest // len(others) for name in plain]
