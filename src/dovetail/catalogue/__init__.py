"""Resource types that clouds rent out, with their prices: found by id, filtered, and put into problems."""

from dovetail.catalogue.catalogue import (
    Catalogue,
    PriceList,
    SortBy,
    load_catalogue,
    read_problem_with,
    resolve_resource,
    users_catalogue,
)
from dovetail.catalogue.entry import CatalogueEntry, Precision

__all__ = [
    "Catalogue",
    "CatalogueEntry",
    "Precision",
    "PriceList",
    "SortBy",
    "load_catalogue",
    "read_problem_with",
    "resolve_resource",
    "users_catalogue",
]
