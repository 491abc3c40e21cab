"""Plans and planned nodes for tests."""

from typing import Any

from dovetail.catalogue import load_catalogue
from dovetail.manifests.nodes import PlannedNodes, planned_nodes
from dovetail.spec.plan import Plan, Stage
from dovetail.spec.run import Run, RunModel, RunServers

STAGES = (("cpu", 0, 1, 20), ("aws:g5.xlarge", 2, 8, 2), ("cpu", 9, 9, 3))
RUN_TEXT = '# a run\n[model]\nname = "ctr-dnn"\n\n[servers]\ncount = 2\n'


def make_plan(*stages: tuple[str, int, int, int]) -> Plan:
    made = [
        Stage(resource=name, first_layer=first, last_layer=last, units=units)
        for name, first, last, units in stages or STAGES
    ]
    return Plan(
        method="exact",
        stages=tuple(made),
        samples_per_s=1.0,
        cost_per_hour=1.0,
        cost=1.0,
        lower_bound=1.0,
        optimal=True,
        seconds=0.0,
    )


def make_planned(*stages: tuple[str, int, int, int], **more: Any) -> PlannedNodes:
    """Return 23 CPU cores on nodes of 8, and two instances with a GPU each, unless told otherwise."""
    known: dict[str, Any] = {
        "plan_text": '{"method": "exact"}\n',
        "run": Run(model=RunModel(name="ctr-dnn"), servers=RunServers(count=2, host_bytes=1 << 30)),
        "run_text": RUN_TEXT,
        "catalogue": load_catalogue(),
        "per_node": {} if stages else {"cpu": 8},
        "name": "My plan",
        "image": "registry.example/dovetail:1",
    }
    plan = more.pop("plan", None) or make_plan(*stages)
    return planned_nodes(plan, **{**known, **more})
