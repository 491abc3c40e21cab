"""All known types by id: those that come with Dovetail, then a user's own, filtered and sorted."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from dovetail.catalogue.entry import CatalogueEntry
from dovetail.catalogue.price_list import packaged_price_list, read_price_list
from dovetail.errors import SpecError, did_you_mean
from dovetail.spec.resource import Kind

SortBy = Literal["price", "memory", "flops", "name"]
VARIABLE = "DOVETAIL_CATALOGUE"
"""Names more catalogue files, separated like PATH."""


class Catalogue(Mapping[str, CatalogueEntry]):
    """Types by id; of two entries with one id the later counts."""

    def __init__(self, entries: Iterable[CatalogueEntry]) -> None:
        """Keep the entries in the order in which their ids first came."""
        self._entries = {entry.id: entry for entry in entries}

    def __getitem__(self, entry_id: str) -> CatalogueEntry:
        return self._entries[entry_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def clouds(self) -> list[str]:
        """The clouds that rent out anything here, in alphabetical order."""
        return sorted({entry.cloud for entry in self.values()})

    @property
    def accelerators(self) -> list[str]:
        """The accelerators of all entries, in alphabetical order."""
        return sorted({entry.accelerator for entry in self.values() if entry.accelerator is not None})

    def find(self, entry_id: str) -> CatalogueEntry:
        """Return the entry of an id, or say which id is nearest."""
        if entry_id in self:
            return self[entry_id]
        near = difflib.get_close_matches(entry_id, self, n=1)
        raise SpecError(
            f'"{entry_id}" is not in the catalogue',
            hint=did_you_mean(entry_id, near) if near else f"`dovetail catalogue` lists its {len(self)} types",
        )

    def select(
        self,
        *,
        cloud: str | None = None,
        kind: Kind | None = None,
        accelerator: str | None = None,
        max_usd_per_hour: float | None = None,
        min_memory_bytes: float | None = None,
        spot: bool = False,
        sort_by: SortBy = "price",
    ) -> list[CatalogueEntry]:
        """Return the entries that pass every filter given, sorted.

        `accelerator` is a name in any case; "A100" also finds "A100-80GB". With `spot` the price is the spot price,
        and entries without one are left out. Memory is that of `unit_memory_bytes`, and what is not known is never
        enough. By price the cheapest come first, by memory and by flops (fp32) the largest, and the unknown last.
        """
        _check_known("cloud", cloud, self.clouds)
        _check_known("kind", kind, get_args(Kind))
        _check_known("sort", sort_by, get_args(SortBy))
        if accelerator is not None and not any(_is_called(name, accelerator) for name in self.accelerators):
            raise _unknown("accelerator", accelerator, self.accelerators)
        chosen = (
            entry
            for entry in self.values()
            if (cloud is None or entry.cloud == cloud)
            and (kind is None or entry.kind == kind)
            and (accelerator is None or _is_called(entry.accelerator, accelerator))
            and (not spot or entry.spot_usd_per_hour is not None)
            and (max_usd_per_hour is None or entry.price_per_hour(spot) <= max_usd_per_hour)
            and (min_memory_bytes is None or (entry.unit_memory_bytes or 0.0) >= min_memory_bytes)
        )
        return sorted(chosen, key=_sort_key(sort_by, spot=spot))


def load_catalogue(own_files: Sequence[Path] = ()) -> Catalogue:
    """Return the types that come with Dovetail and those of a user's files, which add to them or replace them."""
    lists = [packaged_price_list(), *(read_price_list(path) for path in own_files)]
    return Catalogue(entry for prices in lists for entry in prices.dated_entries())


def users_catalogue(own_files: Sequence[Path] = ()) -> Catalogue:
    """Return the types that come with Dovetail and those of a user's files: of `DOVETAIL_CATALOGUE`, then these."""
    named = [Path(path) for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]
    return load_catalogue([*named, *own_files])


def _is_called(name: str | None, wanted: str) -> bool:
    """Say whether an accelerator goes by a name: itself, or itself with a variant behind a hyphen."""
    return name is not None and f"{name}-".lower().startswith(f"{wanted}-".lower())


def _check_known(what: str, word: str | None, known: Sequence[str]) -> None:
    """Refuse a filter's word that nothing could ever match."""
    if word is not None and word not in known:
        raise _unknown(what, word, known)


def _unknown(what: str, word: str, known: Sequence[str]) -> SpecError:
    """Return the error for a filter's word that is not known, with the nearest that is."""
    return SpecError(f'is "{word}", which the catalogue does not know', key=what, hint=did_you_mean(word, known))


def _sort_key(sort_by: SortBy, *, spot: bool) -> Callable[[CatalogueEntry], tuple[float, str]]:
    """Return what entries are sorted by; those that are alike stand in the order of their ids."""

    def rank(entry: CatalogueEntry) -> float:
        """Return the number to sort by, the first lowest."""
        if sort_by == "price":
            return entry.price_per_hour(spot)
        if sort_by == "name":
            return 0.0
        largest_first = entry.unit_memory_bytes if sort_by == "memory" else entry.flops_per_s()
        return math.inf if largest_first is None else -largest_first

    return lambda entry: (rank(entry), entry.id)
