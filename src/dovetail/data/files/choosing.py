"""Which columns are what, where nobody says: taken from the names and types that a file has itself.

| a column of | is |
|---|---|
| fractions, bools | dense |
| whole numbers, text | a slot |
| lists of whole numbers or text | a multi-valued slot |
| lists of fractions, lists of lists | a further field |

The label is the column `label`, `labels`, `target`, `targets` or `y`. What is named in the options is what it is named.
Where `dense`, `slots` or `fields` name columns, no others are read, unless `ignore` says which are not.

Tables in memory are taken as their owner computes with them: whole numbers are dense too, and lists of them fields.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Any

import pyarrow as pa

from dovetail.data.errors import DataError
from dovetail.data.files.columns import SEPARATOR, Columns
from dovetail.data.files.features import Feature, parse_features
from dovetail.data.files.tables import LABELS
from dovetail.data.files.values import is_list, is_text
from dovetail.errors import did_you_mean
from dovetail.spec.toml import to_toml

UNSAID: Any = "(the column called label)"
"""A label that nobody has named."""
WEIGHTS = ("weight", "weights")
Names = str | Sequence[str]


def listed(words: Names | None) -> tuple[str, ...]:
    """Return names of columns; a single one need not be a list."""
    return () if words is None else (words,) if isinstance(words, str) else tuple(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What someone says of the columns; None where nothing."""

    label: Names | None = UNSAID
    dense: Names | None = None
    slots: Names | None = None
    multi_valued: Names | None = None
    fields: Names | None = None
    ignore: Names | None = None
    weight: str | None = None
    separator: str = SEPARATOR
    shapes: Mapping[str, Sequence[int]] | None = None
    whole: Names | None = None
    transforms: Names | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all columns are named that are to be read."""
        return self.ignore is None and any(each is not None for each in (self.dense, self.slots, self.fields))

    @property
    def has_patterns(self) -> bool:
        """Whether a name may stand for several columns."""
        named = (*listed(self.dense), *listed(self.slots), *listed(self.fields), *listed(self.ignore))
        return any(sign in name for name in named for sign in "*?[")

    def columns(self, features: Sequence[Feature] | None = None) -> Columns:
        """Return what is said as it is."""
        label = "label" if self.label is UNSAID else self.label
        return Columns(
            label=label if label is None or isinstance(label, str) else tuple(label),
            dense=listed(self.dense),
            slots=listed(self.slots),
            multi_valued=listed(self.multi_valued),
            separator=self.separator,
            weight=self.weight,
            fields=listed(self.fields),
            shapes=tuple((name, tuple(shape)) for name, shape in (self.shapes or {}).items()),
            whole=listed(self.whole),
            transforms=parse_features(self.transforms or ()) if features is None else tuple(features),
        )


def said_in(options: Mapping[str, Any]) -> Said:
    """Return what options of data say of columns."""
    known = {field.name for field in dataclass_fields(Said)}
    return Said(**{name: value for name, value in options.items() if name in known})


def chosen_columns(
    said: Said,
    types: pa.Schema,
    *,
    where: str,
    label_names: Sequence[str] = LABELS,
    kind_of: Callable[[pa.DataType], str | None] | None = None,
) -> Columns:
    """Return which columns are what; `types` are a file's, with folders that are columns among them.

    `kind_of` says what a column of some type is: `kind_in_files`, `kind_in_csv` or `kind_in_memory`.

    Raises DataError, with all their names, for columns that could be several things or none.
    """
    kind_of = kind_of or kind_in_files
    features = parse_features(said.transforms or ())
    made = {feature.name: feature for feature in features}
    present = [*types.names, *(name for name in made if name not in types.names)]
    said = replace(
        said,
        dense=_matching(said.dense, present, "dense", where),
        slots=_matching(said.slots, present, "slots", where),
        fields=_matching(said.fields, present, "fields", where),
        ignore=_matching(said.ignore, present, "ignore", where),
    )
    if said.is_whole:
        columns = said.columns(features)
        return _checked(columns if kind_of is kind_in_csv else _with_lists(columns, types), made, present, where)
    label = _label(said, present, label_names, where)
    named = {*listed(said.dense), *listed(said.slots), *listed(said.fields), *listed(said.multi_valued)}
    known = {*named, *listed(label), *listed(said.weight), *listed(said.ignore)}
    if kind_of is not kind_in_memory and said.weight is None:
        _refuse_weights([name for name in present if name in WEIGHTS and name not in known], where)
    kinds: dict[str, list[str]] = {"dense": [], "slots": [], "many": [], "fields": []}
    unclear: dict[str, pa.DataType] = {}
    read = {name for feature in features for name in feature.reads}
    for name in present:
        if name in known:
            continue
        if name in made:
            kinds["slots" if made[name].is_category else "dense"].append(name)
        elif kind := kind_of(_inner(types.field(name).type)):
            kinds[kind].append(name)
        elif name not in read:
            unclear[name] = types.field(name).type
    if unclear:
        raise DataError(
            f"`{where}`: what columns are for is not clear from their types: "
            + ", ".join(f"`{name}` ({_shown(kind)})" for name, kind in unclear.items()),
            hint=f"leave them out: ignore={','.join(unclear)}; name them among dense, slots or fields; "
            f'or make something of them: transforms=["hour({next(iter(unclear))})"]',
        )
    several = [name for name in listed(said.multi_valued) if name not in listed(said.slots)]
    slots = {*listed(said.slots), *several, *kinds["slots"], *kinds["many"]}
    dense, fields = {*listed(said.dense), *kinds["dense"]}, {*listed(said.fields), *kinds["fields"]}
    chosen = replace(
        said,
        label=label,
        dense=[name for name in present if name in dense],
        slots=[name for name in present if name in slots],
        multi_valued=[name for name in present if name in {*listed(said.multi_valued), *kinds["many"]}],
        fields=[name for name in present if name in fields],
    )
    columns = chosen.columns(features)
    columns = columns if kind_of is kind_in_csv else _with_lists(columns, types)
    return replace(columns, transforms=columns.used)


def _matching(names: Names | None, present: Sequence[str], kind: str, where: str) -> list[str] | None:
    """Return names with those in the place of patterns, such as `I*`, that match them."""
    if names is None:
        return None
    found: dict[str, None] = {}
    for name in listed(names):
        if name in present or not any(sign in name for sign in "*?["):
            if kind == "ignore" and name not in present:
                raise DataError(f"`{where}` has no column `{name}` to ignore", hint=did_you_mean(name, present))
            found[name] = None
            continue
        if not (matching := fnmatch.filter(present, name)):
            raise DataError(f"`{where}` has no column that matches {kind}={name}", hint=did_you_mean(name, present))
        found |= dict.fromkeys(matching)
    return list(found)


def _with_lists(columns: Columns, types: pa.Schema) -> Columns:
    """Return columns of which slots that hold lists are multi-valued, named so or not."""
    made = {feature.name for feature in columns.transforms}
    many = [
        name
        for name in columns.slots
        if name not in made and name in types.names and is_list(_inner(types.field(name).type))
    ]
    return replace(columns, multi_valued=tuple(dict.fromkeys([*columns.multi_valued, *many])))


def _checked(columns: Columns, made: Mapping[str, Feature], present: Sequence[str], where: str) -> Columns:
    """Refuse transforms whose columns nothing reads, perhaps as another name is wrong."""
    used = {feature.name for feature in columns.used}
    if columns.label is not None and (unread := [name for name in made if name not in used]):
        for name in (*columns.dense, *columns.slots, *columns.fields):
            if name not in present:
                raise DataError(f"`{where}` has no column `{name}`", hint=did_you_mean(name, present))
        raise DataError(
            f"transforms make `{unread[0]}`, which nothing reads",
            hint=f"name it among the {'slots' if made[unread[0]].is_category else 'numbers (dense)'}, or leave it out",
        )
    return columns


def _label(said: Said, present: Sequence[str], label_names: Sequence[str], where: str) -> Names | None:
    """Return the label's column, or columns."""
    if said.label is not UNSAID:
        return said.label
    elsewhere = {*listed(said.dense), *listed(said.slots), *listed(said.fields), *listed(said.ignore)}
    found = [name for name in label_names if name in present and name not in elsewhere]
    if len(found) > 1:
        raise DataError(
            f"`{where}`: any of the columns {', '.join(f'`{name}`' for name in found)} could be the label",
            hint=f"say which: label={found[0]}, and what the others are, e.g. ignore={found[1]}",
        )
    if not any(present):
        raise DataError(f"`{where}` has no columns", hint="is it empty, or of another format?")
    if not found:
        raise DataError(
            f"`{where}`: none of its columns is called `label`: {', '.join(present)}",
            hint="say which one is: label=COLUMN",
        )
    return found[0]


def _refuse_weights(names: Sequence[str], where: str) -> None:
    """Refuse columns by which samples may count, or may not."""
    if names:
        raise DataError(
            f"`{where}`: the column `{names[0]}` could be how much a sample counts, or a number like others",
            hint=f"say weight={names[0]}, or dense={names[0]} ignore=[], or ignore={names[0]}",
        )


def _inner(kind: pa.DataType) -> pa.DataType:
    """Return the type of values, however they are kept."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def kind_in_files(kind: pa.DataType) -> str | None:
    """Return what a column of some type is in a file; None where that is not clear."""
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
        return "dense"
    if pa.types.is_integer(kind) or is_text(kind) or str(kind) in ("string_view", "binary_view"):
        return "slots"
    if is_list(kind):
        inner = kind_in_files(_inner(kind.value_type))
        return {"slots": "many", "dense": "fields", "many": "fields", "fields": "fields"}.get(inner or "")
    return None


def kind_in_csv(kind: pa.DataType) -> str | None:
    """Return what a column of some type is in CSV, where bools are words."""
    return "slots" if pa.types.is_boolean(kind) else kind_in_files(kind)


def kind_in_memory(kind: pa.DataType) -> str | None:
    """Return what a column of some type is in a table in memory."""
    if pa.types.is_integer(kind):
        return "dense"
    if is_list(kind) and pa.types.is_integer(_inner(kind.value_type)):
        return "fields"
    return kind_in_files(kind)


def _shown(kind: pa.DataType) -> str:
    """Return a type in words."""
    return "no values" if pa.types.is_null(kind) else str(kind)


def described(columns: Columns, where: str, name: str) -> str:
    """Return what was chosen, as a run file would have it."""
    said = to_toml({key: value for key, value in columns.options().items() if value is not None})
    return (
        f"columns of {where} ({name}), taken by their names and types; in a run file, under [data.options]:\n"
        + "\n".join(f"  {line}" for line in said.strip().splitlines())
    )
