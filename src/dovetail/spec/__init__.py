"""What users describe: frozen values with their units in their names, and the files they stand in."""

from dovetail.spec.beside import Beside, Place, Whole
from dovetail.spec.files import read_plan, read_problem, write_problem
from dovetail.spec.layer import Layer, LayerTime, RowCacheCurve
from dovetail.spec.link import Link, SiteLink
from dovetail.spec.machine import SharedMachine
from dovetail.spec.plan import Compared, Part, Plan, Stage
from dovetail.spec.problem import Problem, Training
from dovetail.spec.resource import ResourceType

__all__ = [
    "Beside",
    "Compared",
    "Layer",
    "LayerTime",
    "Link",
    "Part",
    "Place",
    "Plan",
    "Problem",
    "ResourceType",
    "RowCacheCurve",
    "SharedMachine",
    "SiteLink",
    "Stage",
    "Training",
    "Whole",
    "read_plan",
    "read_problem",
    "write_problem",
]
