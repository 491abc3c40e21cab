"""What a sample of some data consists of."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.data.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One categorical feature: its ids, and how many of them a sample may have."""

    name: str
    multi_valued: bool = False
    num_keys: int | None = None
    """How many distinct ids there can be, where that is known; they are then `first_key`, `first_key + 1`, ..."""
    first_key: int = 0
    hash_into: int | None = None
    """Where set, an id is the hash of the value's text modulo this; else the whole hash, or as the data have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A further field of a sample: a sequence, an image, any tensor."""

    name: str
    shape: tuple[int | None, ...] = ()
    """Of one sample; None where it differs from sample to sample."""
    dtype: str = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The names of a sample's numbers and slots, in the order in which batches hold them, and of further fields."""

    dense: tuple[str, ...] = ()
    slots: tuple[Slot, ...] = ()
    fields: tuple[Field, ...] = ()
    label_shape: tuple[int, ...] = ()
    """Of one sample's label; () for one number."""

    def __post_init__(self) -> None:
        """Refuse names that stand for two features, and samples without any."""
        names = [*self.dense, *(slot.name for slot in self.slots), *(field.name for field in self.fields)]
        if not names:
            raise DataError(
                "the data have no features",
                hint="name at least one number, slot or field: dense=price, slots=colour,tags "
                "(in a shell: --data-option dense=price)",
            )
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"two features are called `{twice[0]}`", hint="give every number and slot its own name")

    @property
    def num_dense(self) -> int:
        """How many numbers a sample has."""
        return len(self.dense)

    @property
    def num_slots(self) -> int:
        """How many slots a sample has."""
        return len(self.slots)

    @property
    def num_keys(self) -> int | None:
        """How many distinct ids all slots have together, or None where one of them does not say."""
        counts = [slot.num_keys for slot in self.slots]
        return None if None in counts else sum(count for count in counts if count is not None)


CRITEO_SCHEMA = Schema(
    dense=tuple(f"I{number}" for number in range(1, 14)),
    slots=tuple(Slot(name=f"C{number}") for number in range(1, 27)),
)
"""The public click log: 13 integers and 26 categories."""
