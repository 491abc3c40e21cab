"""From raw rows to the tensors of an exported model, without Dovetail: twenty lines that travel with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.data.source import Source

READER = "read_rows.py"
HASH = (
    "FNV-1a over the UTF-8 bytes of the value, begun with the first 8 bytes (little endian) of blake2b-64 of "
    "'0/slot/NAME', then mixed by SplitMix64 and cut to 63 bits; then modulo the slot's hash_into, where it has one"
)
"""How a value of a slot becomes an id, in words; `read_rows.py` is the same as a program."""
MODULO = "id = id of the data modulo the slot's hash_into"
PROGRAM = '''"""Raw rows, as dictionaries, to what model.pt2 takes: model(*tensors(rows))."""
import hashlib, json, pathlib, torch
FACTS = json.loads((pathlib.Path(__file__).parent / "model.json").read_text())
def key(slot, text, word=2**64 - 1):
    salt = int.from_bytes(hashlib.blake2b(f"0/slot/{slot['name']}".encode(), digest_size=8).digest(), "little")
    for byte in text.encode():
        salt = (salt ^ byte) * 0x100000001B3 & word
    salt = (salt ^ salt >> 30) * 0xBF58476D1CE4E5B9 & word
    salt = (salt ^ salt >> 27) * 0x94D049BB133111EB & word
    return ((salt ^ salt >> 31) & 2**63 - 1) % (slot.get("hash_into") or 2**63)
def bag(row, slot):
    value = row.get(slot["name"])
    if not slot["multi_valued"]:
        return [key(slot, "" if value is None else str(value))]
    values = value.split(FACTS["columns"]["separator"]) if isinstance(value, str) else value or []
    return [key(slot, str(each)) for each in values if str(each)]
def tensors(rows):
    bags = [bag(row, slot) for row in rows for slot in FACTS["schema"]["slots"]]
    dense = torch.tensor([[float(row.get(name) or 0) for name in FACTS["schema"]["dense"]] for row in rows])
    offsets = torch.tensor([0, *(len(each) for each in bags)]).cumsum(0)
    ids = torch.tensor([each for ids in bags for each in ids], dtype=torch.int64)
    return tuple({"dense": dense, "ids": ids, "offsets": offsets}[name] for name in FACTS["inputs"])
'''


def reader_facts(source: Source) -> dict[str, Any]:
    """Return what a reader of raw rows needs to know; nothing where the data do not come from named columns."""
    columns = getattr(source, "columns", None)
    if columns is None:
        return {"hash": MODULO} if any(slot.hash_into for slot in source.schema.slots) else {}
    return {"hash": HASH, "columns": {"label": columns.label, "separator": columns.separator}}


def write_reader(out: Path, source: Source, inputs: tuple[str, ...]) -> tuple[str, ...]:
    """Write the reader beside a model whose inputs it can make; return the files written."""
    (out / READER).unlink(missing_ok=True)
    if getattr(source, "columns", None) is None or not set(inputs) <= {"dense", "ids", "offsets"}:
        return ()
    (out / READER).write_text(PROGRAM, encoding="utf-8")
    return (READER,)
