"""Resource types that clouds rent out, with their prices: found by id, filtered, and put into problems."""

from dovetail.catalogue.catalogue import Catalogue, SortBy, load_catalogue, users_catalogue
from dovetail.catalogue.entry import CatalogueEntry, Precision
from dovetail.catalogue.price_list import PriceList
from dovetail.catalogue.resolve import problem_from_table, read_problem, read_problem_with, resolve_resource

__all__ = [
    "Catalogue",
    "CatalogueEntry",
    "Precision",
    "PriceList",
    "SortBy",
    "load_catalogue",
    "problem_from_table",
    "read_problem",
    "read_problem_with",
    "resolve_resource",
    "users_catalogue",
]
