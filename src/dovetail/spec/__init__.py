"""What users describe: frozen values with their units in their names, and the files they stand in."""

from dovetail.spec.files import read_plan, read_problem, write_problem
from dovetail.spec.layer import Layer, LayerTime
from dovetail.spec.link import Link
from dovetail.spec.plan import Plan, Stage
from dovetail.spec.problem import Problem
from dovetail.spec.resource import ResourceType
from dovetail.spec.row_cache import RowCache
from dovetail.spec.site_link import SiteLink
from dovetail.spec.training import Training

__all__ = [
    "Layer",
    "LayerTime",
    "Link",
    "Plan",
    "Problem",
    "ResourceType",
    "RowCache",
    "SiteLink",
    "Stage",
    "Training",
    "read_plan",
    "read_problem",
    "write_problem",
]
