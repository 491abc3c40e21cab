"""What runs beside the layers, as formulas: readers, servers, steps, the cores of all and the machines they share.

One process (`local`), its layers one after the other in t(k) on its unit (a core: k threads), with r cores that read:

    batch = max(t(k), read / r)

Servers, n of them, that keep the rows; stages i in t_i, where embeddings take the seconds of their client instead:

    batch = step + max(pipeline(t_1, ..., t_s, server / n), read / r)

Where they take more cores than the c of all machines, which no plan does but who is told to may run, they take turns:

    batch = step + max(..., (k_1 t_1 + ... + server + read) / c)              k_i: the cores of stage i

`pipeline` is filled and drained with every step (`cost.pipeline.sync_step_seconds`). A layout that was measured as a
whole takes what was measured.

    cores = units of kind cpu + servers + readers + cores that feed accelerators

All cores that are no unit of a stage are paid for at the price of the cheapest type of kind cpu, as units of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from dovetail.cost.memory import stage_memory
from dovetail.cost.pipeline import sync_step_seconds
from dovetail.errors import PlanError
from dovetail.spec import Beside, Layer, LayerTime, Part, Place, Problem, ResourceType, SharedMachine, Stage, Whole
from dovetail.units import format_bytes

ROUNDING = 1e-9
"""Memory that is exceeded by less than this fraction is rounding."""


def served(problem: Problem) -> Problem:
    """Return the problem with the rows of its embeddings on servers.

    What a type's workers spend on them stands in the place of the embeddings' own times, shared among several by the
    bytes that they put out. Units hold no rows. An embedding cannot run where what its client takes is not known.
    """
    beside = problem.beside
    embeddings = [layer for layer in problem.layers if layer.kind == "embedding"]
    if beside is None or not embeddings:
        return problem
    all_bytes = sum(layer.output_bytes for layer in embeddings)

    def on_servers(layer: Layer) -> Layer:
        share = layer.output_bytes / all_bytes if all_bytes > 0 else 1 / len(embeddings)
        on = {
            name: LayerTime(
                compute_s=beside.client_s[name] * share,
                comm_s=0.0,
                compute_parallel=beside.client_parallel.get(name, 1.0),
                comm_parallel=1.0,
            )
            for name in layer.on
            if name in beside.client_s
        }
        return msgspec.structs.replace(layer, on=on, weight_bytes=0.0, optimizer_bytes=0.0, index_bytes=0.0)

    layers = tuple(on_servers(layer) if layer.kind == "embedding" else layer for layer in problem.layers)
    return msgspec.structs.replace(problem, layers=layers)


def rows_bytes(problem: Problem) -> float:
    """Return what the rows of all embeddings take, with their state and index."""
    embeddings = [layer for layer in problem.layers if layer.kind == "embedding"]
    return sum(layer.weight_bytes + layer.optimizer_bytes + layer.index_bytes for layer in embeddings)


def whole_of(beside: Beside, place: Place, stages: Sequence[Stage], servers: int) -> Whole | None:
    """Return the measurement of a layout as a whole, where there is one."""
    if len(stages) != 1:
        return None
    layout = (place, stages[0].resource, stages[0].units, servers)
    return next((each for each in beside.wholes if layout == _layout(each)), None)


def _layout(whole: Whole) -> tuple[Place, str, int, int]:
    return whole.place, whole.resource, whole.units, whole.servers


def check_place(problem: Problem, stages: Sequence[Stage], place: Place, servers: int, readers: int) -> None:
    """Refuse a place of rows that these stages cannot have, and parts that are missing."""
    beside = problem.beside
    if beside is None:
        return
    if place not in beside.places:
        raise PlanError(
            f'the plan has place = "{place}", and rows may be: {", ".join(beside.places)}',
            hint="plan again, or add it to beside.places where it can run",
        )
    if whole_of(beside, place, stages, servers) is not None:
        return
    if place == "sharded":
        measured = sorted({f"{each.units} x {each.resource}" for each in beside.wholes if each.place == "sharded"})
        raise PlanError(
            "a layout with sharded rows is priced by its measurement alone, and this one was not measured",
            hint=f"measured are: {', '.join(measured)}" if measured else "add a table [[beside.whole]] for it",
        )
    if place == "local":
        _check_local(problem, stages, servers)
    elif servers < 1:
        raise PlanError('servers is 0 with place = "servers"', hint="say how many servers keep the rows")
    else:
        _check_served(problem, beside, stages)
    if beside.read_core_s > 0 and readers < 1:
        raise PlanError(
            f"readers is {readers}, and reading a batch takes {beside.read_core_s:g} s of a core",
            hint="say how many cores read, e.g. readers = 1",
        )


def _check_local(problem: Problem, stages: Sequence[Stage], servers: int) -> None:
    """Refuse one process that is several, or that has servers."""
    if len(stages) > 1:
        raise PlanError(
            f'{len(stages)} stages with place = "local": one process has one', hint='use place = "servers" for several'
        )
    if stages[0].units > 1 and stages[0].resource not in problem.cpu_types:
        raise PlanError(
            f"{stages[0].units} units of `{stages[0].resource}` in one process, which has one of it",
            hint='use place = "servers", or "sharded" where that was measured',
        )
    if servers:
        raise PlanError(f'servers is {servers} with place = "local"', hint="one process keeps its rows: leave it out")


def _check_served(problem: Problem, beside: Beside, stages: Sequence[Stage]) -> None:
    """Refuse rows on servers of which nobody knows what they take."""
    if beside.server_core_s is None:
        raise PlanError(
            "rows are on servers, and the problem does not say what those take", hint="add beside.server_core_s"
        )
    for stage in stages:
        for layer in problem.layers[stage.first_layer : stage.last_layer + 1]:
            if layer.kind == "embedding" and stage.resource not in beside.client_s:
                raise PlanError(
                    f"`{layer.name}` has its rows on servers, and what workers on `{stage.resource}` take for them is "
                    "not known",
                    hint=f"add beside.client_s.{stage.resource}, or put the layer elsewhere",
                )


def micro_batches(batch: int, micro_batch: int, first_units: int) -> int:
    """Return in how many pieces the workers of the first stage, each with its part of a batch, hand it on."""
    return first_units * math.ceil(batch / first_units / micro_batch)


def batch_seconds(
    problem: Problem, stages: Sequence[Stage], stage_s: Sequence[float], *, place: Place, servers: int, readers: int
) -> float:
    """Return what a batch takes by the formulas, with what runs beside stages that take `stage_s`."""
    beside = problem.beside
    if beside is None:
        return max(stage_s)
    read_s = beside.read_core_s / readers if readers else 0.0
    work_s = _core_seconds(problem, stages, stage_s, servers=servers if place == "servers" else 0, readers=readers)
    turns_s = work_s / all_cores(problem)
    if place == "local":
        return max(*stage_s, read_s, turns_s)
    parts_s = [*stage_s, (beside.server_core_s or 0.0) / servers]
    if beside.micro_batch is None:
        piped_s = max(parts_s)
    else:
        pieces = micro_batches(problem.training.batch, beside.micro_batch, stages[0].units)
        piped_s = sync_step_seconds(parts_s, [*(stage.units for stage in stages), servers], micro_batches=pieces)
    return beside.step_s + max(piped_s, read_s, turns_s)


def _core_seconds(
    problem: Problem, stages: Sequence[Stage], stage_s: Sequence[float], *, servers: int, readers: int
) -> float:
    """Return the seconds of cores that a batch takes: of units of kind cpu, servers and readers."""
    beside = problem.beside
    units = sum(
        stage.units * seconds
        for stage, seconds in zip(stages, stage_s, strict=True)
        if stage.resource in problem.cpu_types
    )
    if beside is None:
        return units
    return units + (beside.server_core_s or 0.0) * (servers > 0) + beside.read_core_s * (readers > 0)


def all_cores(problem: Problem) -> float:
    """Return the cores of all machines; infinity where none is said."""
    return sum(machine.cores * machine.count for machine in problem.machines) or math.inf


def host_cores(problem: Problem, resource: str) -> int:
    """Return the cores that feed one unit of a type; none of ours where the type stands on no machine of ours."""
    if problem.beside is None or (problem.machines and not any(resource in each.units for each in problem.machines)):
        return 0
    return problem.beside.host_cores.get(resource, 0)


def cores_of(problem: Problem, stages: Sequence[Stage], *, fed: bool) -> list[int]:
    """Return the cores that each stage takes: its units of kind cpu, or what feeds its accelerators where they are."""
    cpu_types = problem.cpu_types
    return [
        stage.units
        if stage.resource in cpu_types
        else stage.units * (host_cores(problem, stage.resource) if fed else 0)
        for stage in stages
    ]


def core_type(problem: Problem) -> ResourceType | None:
    """Return the type whose units all cores are that no stage names: the cheapest of kind cpu."""
    cores = [resource for resource in problem.resources if resource.name in problem.cpu_types]
    return min(cores, key=lambda resource: resource.price_per_hour, default=None)


def parts_of(
    problem: Problem,
    stages: Sequence[Stage],
    stage_s: Sequence[float],
    *,
    place: Place,
    servers: int,
    readers: int,
    batch_s: float,
) -> tuple[Part, ...]:
    """Return what each part takes, for stages that take `stage_s` and a batch of `batch_s` in all."""
    beside = problem.beside
    if beside is None:
        return ()
    found = []
    if readers:
        found.append(Part(part="read", seconds_per_batch=beside.read_core_s / readers, cores=readers))
    if place == "servers":
        found.append(Part(part="servers", seconds_per_batch=(beside.server_core_s or 0.0) / servers, cores=servers))
        client_s = _client_seconds(problem, stages)
        if client_s > 0:
            found.append(Part(part="rows", seconds_per_batch=client_s))
    for number, (stage_cores, seconds) in enumerate(zip(cores_of(problem, stages, fed=True), stage_s, strict=True)):
        found.append(Part(part=f"stage {number}", seconds_per_batch=seconds, cores=stage_cores))
    if place == "servers":
        slowest_s = max(part.seconds_per_batch for part in found)
        found.append(Part(part="step", seconds_per_batch=max(0.0, batch_s - slowest_s)))
    return tuple(found)


def _client_seconds(problem: Problem, stages: Sequence[Stage]) -> float:
    """Return what workers spend on rows that servers keep, in a problem that is `served`."""
    return sum(
        time.compute_s * (1 - time.compute_parallel + time.compute_parallel / stage.units)
        for stage in stages
        for layer in problem.layers[stage.first_layer : stage.last_layer + 1]
        if layer.kind == "embedding"
        for time in (layer.on[stage.resource],)
    )


# What machines have room for.


def machine_violations(problem: Problem, stages: Sequence[Stage], cores: int, *, place: Place | None) -> list[str]:
    """Return what is asked of machines and they do not have, each as a sentence."""
    machines = problem.machines
    if not machines:
        return []
    if place == "local":
        return _one_machine_violations(machines, stages[0], cores)
    found = []
    there_are = sum(machine.cores * machine.count for machine in machines)
    if cores > there_are:
        found.append(f"{cores} cores are more than the {there_are} of all machines")
    used: Counter[str] = Counter()
    for stage in stages:
        used[stage.resource] += stage.units
    for name, units in used.items():
        if any(name in machine.units for machine in machines):
            fed = host_cores(problem, name) if place is not None else 0
            there = sum(_units_on(machine, name, fed) * machine.count for machine in machines)
            if units > there:
                found.append(f"{units} units of `{name}` are more than machines have and feed: {there}")
    return found


def _one_machine_violations(machines: Sequence[SharedMachine], stage: Stage, cores: int) -> list[str]:
    """Return why no machine has room for one process, where none has."""
    of_type = [machine for machine in machines if stage.resource in machine.units]
    if any(machine.units[stage.resource] < 1 for machine in of_type):
        of_type = [machine for machine in of_type if machine.units[stage.resource] >= 1]
        if not of_type:
            return [f"a unit of `{stage.resource}` is more than machines have: 0"]
    largest = max(of_type or machines, key=lambda machine: machine.cores)
    if cores > largest.cores:
        return [f"one process takes {cores} cores, and machine `{largest.name}` has {largest.cores}"]
    return []


def _units_on(machine: SharedMachine, resource: str, fed: int) -> int:
    """Return how many units of a type a machine has and can feed."""
    units = machine.units.get(resource, 0)
    return units if fed == 0 else min(units, machine.cores // fed)


def rows_violations(problem: Problem, stages: Sequence[Stage], *, place: Place) -> list[str]:
    """Return where what a `settled` problem keeps does not fit: into machines, or into the one process that trains."""
    if place == "servers":
        rows, has = rows_bytes(problem), all_memory_bytes(problem)
        if rows > has * (1 + ROUNDING):
            return [f"rows of {format_bytes(rows)} are more than machines have room for: {format_bytes(has)}"]
        return []
    resource, units = stages[0].resource, stages[0].units
    held = stage_memory(problem.layers, units=1, resource=resource).total_bytes
    unit_bytes, room = problem.resource(resource).memory_bytes, _memory_beside(problem, resource)
    found = []
    if resource in problem.cpu_types:
        if math.isinf(room) and unit_bytes is not None:
            room = unit_bytes * units
        if held > room * (1 + ROUNDING):
            found.append(f"one process would hold {format_bytes(held)}, and has {format_bytes(room)}")
        return found
    if unit_bytes is not None and held > unit_bytes * (1 + ROUNDING):
        found.append(f"a unit of `{resource}` would hold {format_bytes(held)}, and has {format_bytes(unit_bytes)}")
    outside = sum(_rows_outside(layer, resource) for layer in problem.layers if layer.kind == "embedding")
    if outside > room * (1 + ROUNDING):
        found.append(f"rows of {format_bytes(outside)} beside `{resource}` are more than {format_bytes(room)} hold")
    return found


def all_memory_bytes(problem: Problem) -> float:
    """Return the memory of all machines together; infinity where it is not said of all."""
    known = [machine.memory_bytes for machine in problem.machines if machine.memory_bytes is not None]
    if not known or len(known) < len(problem.machines):
        return math.inf
    return sum(each * machine.count for each, machine in zip(known, problem.machines, strict=True))


def _memory_beside(problem: Problem, resource: str) -> float:
    """Return the most memory of a machine that one process on a type can be on; infinity where it is not said."""
    there = [each for each in problem.machines if each.units.get(resource, 0) > 0 or resource in problem.cpu_types]
    return max((math.inf if each.memory_bytes is None else each.memory_bytes for each in there), default=math.inf)


def _rows_outside(layer: Layer, resource: str) -> float:
    """Return what a unit of a type does not keep of an embedding's rows."""
    here = layer.on[resource].rows_bytes
    return 0.0 if here is None else max(0.0, layer.weight_bytes + layer.optimizer_bytes + layer.index_bytes - here)
