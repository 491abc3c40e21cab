"""What runs beside the layers of a model, and layouts as a whole: measured by short runs of the run's own parts.

Everything has its share of the time that is given for all. A part that was not reached is left out, and that is said:
the planner then has no formula for layouts that need it. In the end the planner is asked what it would choose by then,
and that is run too, until what it chooses has been run twice: no plan rests on a formula alone, or on one lucky run.
"""

from __future__ import annotations

import itertools
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import torch

from dovetail.cost import evaluate
from dovetail.cost.beside import micro_batches
from dovetail.cost.pipeline import sync_step_seconds
from dovetail.data.batch import Batch
from dovetail.data.loader import Loader
from dovetail.errors import PlanError
from dovetail.orchestrate.parts import MeasuredParts, corrected
from dovetail.orchestrate.short_runs import ShortRun, short_run
from dovetail.runtime.planned.from_plan import Machine, PlannedRun, Tell, layout_in_words, placed, quietly
from dovetail.runtime.planned.layouts import (
    in_one_process,
    over_servers,
    over_workers,
    rows_on_gpu,
    with_memory_for_rows,
)
from dovetail.runtime.prepare.run_folder import load_source, with_named_data
from dovetail.runtime.trainer.batches_ahead import READ_SAMPLES
from dovetail.spec import Beside, Place, Plan, Problem, SharedMachine, Stage, Whole
from dovetail.spec.run import Run, RunWorker
from dovetail.units import format_duration

MOST_S = 30.0
"""For all that is measured beside the layers."""
LEAST_S = 2.0
"""A run that has less is not begun: starting takes as long."""
STEADY_PART = 0.5
"""Of a part's time that is measured over; the rest is starting, and what is left goes to the parts after it."""
MOST_SHARES = 2.5
"""Of a part's time that it may take where its pace does not hold by then."""
MOST_OF_LEFT = 1 / 3
"""And of what is left for all: where steps are long, three layouts that were seen say more than seven that were not."""
READ_S = 1.5
MOST_READS = 30
SPARE_CORE = 0.25
"""Of a core that a process may take beyond a whole number of them before it is given another."""
LEAST_CLIENT_S = 1e-6
WORKER = "worker"
PLACES: tuple[Place, ...] = ("local", "servers", "sharded")
AT_HAND = ("cpu", "gpu")
"""What the types of this machine are called."""
SAY_EVERY_S = 5.0

Choose = Callable[[Problem], Plan]
"""Says which plan would be run."""
LayoutKey = tuple[Place | None, tuple[tuple[str, int, int, int], ...], int]
"""Where rows are, the stages, and the servers."""


class Allowance:
    """Seconds for several parts, and how many of them are gone."""

    def __init__(
        self, seconds: float, weights: Sequence[float], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin now; a part of weight two gets twice as long as one of weight one."""
        self.seconds, self._weights = seconds, list(weights)
        self._clock, self._begun_s, self._begun = clock, clock(), 0

    @property
    def gone_s(self) -> float:
        """Return the seconds since it began."""
        return self._clock() - self._begun_s

    @property
    def left_s(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self.seconds - self.gone_s)

    def next(self) -> float:
        """Return what the next part may take: by weight of what is left, but enough to begin, if there is any."""
        weights = self._weights[self._begun :]
        self._begun += 1
        return min(self.left_s, max(LEAST_S, self.left_s * weights[0] / sum(weights)))

    def where(self) -> str:
        """Return in words which part this is, and how much time is gone."""
        return f"{self._begun} of {len(self._weights)}, {self.gone_s:.0f} of {self.seconds:.0f} s gone"


@contextmanager
def said_to_go_on(what: str, tell: Tell, *, every_s: float = SAY_EVERY_S) -> Iterator[None]:
    """Say every few seconds that something still goes on."""
    over, begun_s = threading.Event(), time.monotonic()

    def say() -> None:
        while not over.wait(every_s):
            tell(f"{what} ... {time.monotonic() - begun_s:.0f} s so far")

    teller = threading.Thread(target=say, name="dovetail-says", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


@dataclass(slots=True)
class _Found:
    """What is known so far."""

    read_core_s: float | None = None
    server_core_s: float | None = None
    step_s: float | None = None
    client_s: dict[str, float] = field(default_factory=dict)
    client_parallel: dict[str, float] = field(default_factory=dict)
    host_cores: dict[str, int] = field(default_factory=dict)
    wholes: list[Whole] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Part:
    """Something to be measured, in words, and its weight among the others."""

    words: str
    measure: Callable[[float], None]
    weight: float
    least_s: float = LEAST_S


class BesideMeasurer:
    """Measures what runs beside the layers of one run on one machine."""

    def __init__(
        self,
        run: Run,
        problem: Problem,
        machine: Machine,
        *,
        seconds: float = MOST_S,
        places: Sequence[Place] = PLACES,
        choose: Choose | None = None,
        tell: Tell = quietly,
    ) -> None:
        """Get ready to measure for the problem's batch, on those of its types that this machine has.

        Only layouts with their rows in one of `places` are measured. `choose` says which plan would be run by what is
        known; without it, none is tried.
        """
        run = msgspec.structs.replace(with_named_data(run), stages=[])
        self._run = with_memory_for_rows(run, problem.layers, machine.memory_bytes)
        self._problem, self._machine, self._tell = problem, machine, tell
        self._batch = problem.training.batch
        here = [resource for resource in problem.resources if resource.name in AT_HAND]
        kinds = {problem.kind_of(resource): resource.name for resource in here}
        self._is_all_here = len(here) == len(problem.resources)
        self._cpu = kinds.get("cpu")
        self._gpu = kinds.get("gpu") if machine.gpus else None
        self._found, self._choose, self._places = _Found(), choose, tuple(places)
        self._looks: dict[LayoutKey, list[ShortRun]] = {}
        self._parts = self._all_parts()
        self._allowance = Allowance(seconds, [part.weight for part in self._parts])

    def measure(self) -> Problem:
        """Return the problem with what was found, and with this machine, unless some types stand elsewhere."""
        for part in self._parts:
            share_s = self._allowance.next()
            if share_s < part.least_s:
                self._tell(f"{part.words}: not measured, {self._allowance.where()}")
                continue
            self._tell(f"measuring {part.words} ({self._allowance.where()}) ...")
            try:
                with said_to_go_on(f"measuring {part.words}", self._tell):
                    part.measure(share_s)
            except Exception as error:  # what cannot run here cannot be planned for, and the rest can
                self._tell(f"{part.words} cannot be measured: {type(error).__name__}: {error}")
        return self._known()

    def _known(self) -> Problem:
        """Return the problem with what is known by now."""
        found = self._found
        beside = Beside(
            read_core_s=found.read_core_s or 0.0,
            host_cores=found.host_cores,
            micro_batch=self._run.training.micro_batch,
            step_s=found.step_s or 0.0,
            server_core_s=found.server_core_s,
            client_s=found.client_s,
            client_parallel=found.client_parallel,
            places=self._places,
            wholes=tuple(with_fed_units(whole, found.host_cores) for whole in with_those_between(found.wholes)),
        )
        machines = (machine_here(self._machine, self._problem),) if self._is_all_here else ()
        return msgspec.structs.replace(self._problem, beside=beside, machines=machines)

    def _all_parts(self) -> list[_Part]:
        """Return what is measured: what plans most depend on first, layouts of all cores before those of fewer."""
        cores, parts = self._machine.cores, [_Part("reading", self._read, weight=1.0, least_s=0.0)]
        has_cpu, has_gpu = self._cpu is not None, self._gpu is not None
        local, served, sharded = (place in self._places for place in PLACES)

        def threads(count: int) -> _Part:
            words = f"one process on {count} core{'s' * (count != 1)}"
            return _Part(words, partial(self._local, on_gpu=False, threads=count), weight=1.5)

        if has_gpu and local:
            parts.append(_Part("one process on a GPU", partial(self._local, on_gpu=True), weight=4.0))
        if has_cpu and local:
            parts.append(threads(cores))
        if has_cpu and served:
            parts.append(_Part("a server and a worker on a core", partial(self._servers, on_gpu=False), weight=3.0))
        if has_gpu and served:
            parts.append(_Part("a server and a worker on a GPU", partial(self._servers, on_gpu=True), weight=3.0))
        if has_cpu and served and cores > 1:
            several = several_workers(cores)
            words = f"a server and {several} workers on a core each"
            parts.append(_Part(words, partial(self._servers, on_gpu=False, workers=several), weight=3.0))
        if has_cpu and sharded and cores > 1:
            for count in sorted({2, max(2, cores // 2)}):
                words = f"{count} workers that own the rows"
                parts.append(_Part(words, partial(self._sharded, workers=count), weight=2.0))
        if has_cpu and local and cores > 1:  # seldom the fastest: where steps are slow, these have no time
            parts += [threads(count) for count in sorted({1, max(1, cores // 4)})]
        if self._choose is not None and self._is_all_here:
            parts.append(_Part("what the planner would choose", self._try_chosen, weight=4.0))
        return parts

    # -- the parts -----------------------------------------------------------------------------------------------------

    def _read(self, share_s: float) -> None:
        """Measure what a batch takes one core to read and to assemble."""
        found = read_seconds(self._run, self._batch, seconds=min(READ_S, share_s))
        if found is None:
            self._tell("reading: no batch was read in its time")
            return
        self._found.read_core_s = found
        self._tell(f"reading: {format_duration(found)} of a core a batch")

    def _local(self, share_s: float, *, on_gpu: bool, threads: int | None = None) -> None:
        """Measure one process as a whole."""
        device = "cuda" if on_gpu else "cpu"
        rows_bytes = None
        if on_gpu:
            least = self._run.table.device_bytes
            rows_bytes = rows_on_gpu(self._problem.layers, self._machine.gpu_memory_bytes, least=least)
        run = in_one_process(self._run, device=device, threads=threads, device_bytes=rows_bytes)
        resource = self._gpu if on_gpu else self._cpu
        try:
            found = self._short(f"one process on {resource}", run, share_s)
        finally:
            if on_gpu:
                torch.cuda.empty_cache()
        if found is not None and resource is not None:
            units = 1 if on_gpu else threads or self._machine.cores
            self._keep("local", resource, units, 0, units, found)

    def _servers(self, share_s: float, *, on_gpu: bool, workers: int = 1) -> None:
        """Measure a server and workers: each part of them, and all as a whole."""
        resource = self._gpu if on_gpu else self._cpu
        worker = RunWorker(name=WORKER, count=workers, device="cuda" if on_gpu else "cpu")
        run = over_servers(self._run, [worker], servers=1, readers=workers)
        words = "a worker" if workers == 1 else f"{workers} workers"
        found = self._short(f"a server and {words} on {resource}", run, share_s)
        if found is None or resource is None:
            return
        if workers > 1:
            self._learn_from_several(found, resource, workers)
            self._keep("servers", resource, workers, 1, min(max(workers, self._machine.cores), 1 + workers), found)
            return
        parts = server_parts(
            found,
            self._layers_s(resource, 1),
            read_core_s=self._found.read_core_s or 0.0,
            step_s=self._found.step_s,
            micro_batches=micro_batches(self._batch, self._run.training.micro_batch, 1),
        )
        self._found.client_s[resource] = parts.client_s
        self._found.step_s = parts.step_s
        if self._found.server_core_s is None or not on_gpu:
            self._found.server_core_s = parts.server_core_s
        if on_gpu:
            self._found.host_cores[resource] = parts.host_cores
        self._keep("servers", resource, 1, 1, 1 + parts.host_cores if on_gpu else 2, found)

    def _learn_from_several(self, found: ShortRun, resource: str, workers: int) -> None:
        """Learn from several workers what they share of the rows, what they ask of a server, and what a step keeps.

        Each has a part of a batch, and looks up rows that others have as well. Their processor time says so, however
        few cores they had.
        """
        before = self._found
        if resource not in before.client_s:
            return
        used_s = sum(each for name, each in found.used_s.items() if name.startswith(WORKER))
        rows_s = used_s - (before.read_core_s or 0.0) - workers * self._layers_s(resource, workers)
        before.client_parallel[resource] = shared_part(before.client_s[resource], rows_s / workers, workers)
        server_s = sum(each for name, each in found.used_s.items() if name.startswith("server-"))
        before.server_core_s = max(server_s, before.server_core_s or 0.0)
        if 2 * workers + 1 > self._machine.cores:  # they took turns, and what a step waits for is not seen
            return
        without = msgspec.structs.replace(self._known(), machines=())
        if without.beside is None:
            return
        free = msgspec.structs.replace(without, beside=msgspec.structs.replace(without.beside, step_s=0.0, wholes=()))
        stage = Stage(resource=resource, first_layer=0, last_layer=len(free.layers) - 1, units=workers)
        with suppress(PlanError):  # a layer cannot be there
            priced = evaluate(free, [stage], place="servers", servers=1, readers=workers)
            before.step_s = max(0.0, found.seconds_per_batch - self._batch / priced.samples_per_s)

    def _sharded(self, share_s: float, *, workers: int) -> None:
        """Measure workers that own the rows."""
        run = over_workers(self._run, [RunWorker(count=workers)], readers=workers)
        found = self._short(f"{workers} workers that own the rows", run, share_s)
        if found is not None and self._cpu is not None:
            self._keep("sharded", self._cpu, workers, 0, workers, found)

    def _try_chosen(self, share_s: float) -> None:
        """Run what the planner would choose, and learn from it, until it chooses what was run twice."""
        while self._choose is not None and self._allowance.left_s >= LEAST_S:
            problem = self._known()
            plan = self._choose(problem)
            planned = placed(self._run, msgspec.structs.replace(plan, cores=None), problem, self._machine)
            key = _key_of(plan)
            if len(self._looks.get(key, ())) > 1:
                return
            words = layout_in_words(planned)
            found = self._short(words, planned.run, max(LEAST_S, min(share_s, self._allowance.left_s)))
            if found is None:
                return
            stage = plan.stages[0]
            if len(plan.stages) == 1 and plan.place is not None:
                servers = plan.servers or 0 if plan.place == "servers" else 0
                self._keep(plan.place, stage.resource, stage.units, servers, plan.cores or 1, found, looked=key)
                continue
            self._looks.setdefault(key, []).append(found)
            self._learn_from_stages(problem, planned, found)

    def _learn_from_stages(self, problem: Problem, planned: PlannedRun, found: ShortRun) -> None:
        """Take over what several stages took, each of them, the servers and the step."""
        server_s = sum(each for name, each in found.used_s.items() if name.startswith("server-"))
        stages = found.stages_s if len(found.stages_s) == len(planned.stages) else [None] * len(planned.stages)
        measured = MeasuredParts(
            stages=tuple(
                None if seconds is None else seconds / stage.workers
                for seconds, stage in zip(stages, planned.stages, strict=True)
            ),
            server_core_s=server_s or None,
            whole_s=found.seconds_per_batch,
            error=found.error,
            servers=planned.plan.servers or 0,
        )
        now = corrected(problem, planned, measured)
        if now.beside is not None:
            self._problem = msgspec.structs.replace(self._problem, layers=now.layers)
            self._found.client_s = dict(now.beside.client_s)
            self._found.server_core_s, self._found.step_s = now.beside.server_core_s, now.beside.step_s

    # -- what they have in common --------------------------------------------------------------------------------------

    def _short(self, words: str, run: Run, share_s: float) -> ShortRun | None:
        left_s = self._allowance.left_s
        most_s = min(left_s, max(MOST_SHARES * share_s, MOST_OF_LEFT * left_s))
        found = short_run(run, self._batch, seconds=STEADY_PART * share_s, limit_s=share_s, most_s=most_s)
        if found is None:
            self._tell(f"{words}: no two steps were done in {most_s:.0f} s")
            return None
        rate, cores = self._batch / found.seconds_per_batch, found.cores
        doubt = "" if found.holds else ", and its pace did not hold yet"
        self._tell(f"{words}: {rate:,.0f} samples/s \u00b1 {found.error:.0%}, {cores:.1f} cores busy{doubt}")
        return found

    def _keep(
        self,
        place: Place,
        resource: str,
        units: int,
        servers: int,
        least: int,
        found: ShortRun,
        *,
        looked: LayoutKey | None = None,
    ) -> None:
        """Note a layout as a whole; it takes the cores that it kept busy, and `least` of them.

        Of several looks at one, those whose pace held count, each as much.
        """
        key = looked or (place, ((resource, 0, len(self._problem.layers) - 1, units),), servers)
        looks = self._looks.setdefault(key, [])
        looks.append(found)
        held = [each for each in looks if each.holds] or looks
        seconds = statistics.mean(each.seconds_per_batch for each in held)
        apart = max(abs(each.seconds_per_batch / seconds - 1) for each in held)
        cores = max(least, min(self._machine.cores, whole_cores(max(each.cores for each in held))))
        whole = Whole(
            place=place,
            resource=resource,
            units=units,
            servers=servers,
            cores=cores,
            seconds_per_batch=seconds,
            error=max(apart, statistics.mean(each.error for each in held)),
        )
        layout = (place, resource, units, servers)
        others = [
            each for each in self._found.wholes if layout != (each.place, each.resource, each.units, each.servers)
        ]
        self._found.wholes = [*others, whole]

    def _layers_s(self, resource: str, units: int) -> float:
        """Return what each of so many units takes for the layers of a batch whose rows are with servers."""
        layers = [layer for layer in self._problem.layers if layer.kind != "embedding" and resource in layer.on]
        times = [layer.on[resource] for layer in layers]
        return sum(each.compute_s * (1 - each.compute_parallel + each.compute_parallel / units) for each in times)


def _key_of(plan: Plan) -> LayoutKey:
    """Return what tells layouts apart."""
    stages = tuple((stage.resource, stage.first_layer, stage.last_layer, stage.units) for stage in plan.stages)
    return plan.place, stages, (plan.servers or 0) if plan.place == "servers" else 0


def several_workers(cores: int) -> int:
    """Return how many workers, each with a reader, there is room for beside a server; two at least."""
    return max(2, (cores - 2) // 2)


def shared_part(alone_s: float, each_s: float, workers: int) -> float:
    """Return the part of one worker's seconds that several share, where each of them takes `each_s`.

    each = alone (1 - part + part / workers)
    """
    if alone_s <= 0 or workers < 2:
        return 1.0
    return min(1.0, max(0.0, (1 - max(0.0, each_s) / alone_s) / (1 - 1 / workers)))


def with_those_between(wholes: Sequence[Whole]) -> list[Whole]:
    """Return layouts with those of one process whose number of threads lies between two that were run.

    Between k_1 and k_2 threads, what is serial and what is shared are those with which both take what they took:

        seconds(k) = serial + shared / k

    A process that more threads make slower has them in its way, each as much: there it is a line in k.
    """
    found = list(wholes)
    alone = sorted((each for each in wholes if each.place == "local" and not each.between), key=lambda each: each.units)
    for name in sorted({each.resource for each in alone}):
        mine = [each for each in alone if each.resource == name]
        for one, other in itertools.pairwise(mine):
            gain = one.seconds_per_batch > other.seconds_per_batch
            for units in range(one.units + 1, other.units):
                place = (1 / one.units - 1 / units) / (1 / one.units - 1 / other.units)
                place = place if gain else (units - one.units) / (other.units - one.units)
                found.append(
                    Whole(
                        place="local",
                        resource=name,
                        units=units,
                        cores=max(units, math.ceil(one.cores + (other.cores - one.cores) * place)),
                        seconds_per_batch=one.seconds_per_batch
                        + (other.seconds_per_batch - one.seconds_per_batch) * place,
                        error=max(one.error or 0.0, other.error or 0.0),
                        between=True,
                    )
                )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """What a run of one server and one worker says of each part."""

    server_core_s: float
    client_s: float
    step_s: float
    host_cores: int


def server_parts(
    found: ShortRun, layers_s: float, *, read_core_s: float, step_s: float | None, micro_batches: int
) -> ServerParts:
    """Return the parts of a step of one server and one worker, so that the cost model says of the two what they took.

    The server's part is its processor time. A worker on a core spends its processor time on reading, layers and rows,
    so rows are the rest; what of the step is left beside the pipeline of the two is the step's own. Where that is known
    already, from a worker on a core, the rows of a worker on a GPU are what is left.
    """
    whole_s, used = found.seconds_per_batch, found.used_s
    server_s = sum(each for name, each in used.items() if name.startswith("server-"))
    worker_s = sum(each for name, each in used.items() if name.startswith(WORKER))

    def step_of(rows_s: float) -> float:
        parts_s = [rows_s + layers_s, server_s]
        return max(sync_step_seconds(parts_s, [1, 1], micro_batches=micro_batches), read_core_s)

    rows_s = max(LEAST_CLIENT_S, worker_s - read_core_s - layers_s)
    host_cores = whole_cores((worker_s - read_core_s) / whole_s)
    if step_s is None:
        if step_of(rows_s) > whole_s:  # its threads take turns on more than one core
            rows_s = _solved(step_of, whole_s)
        left_s = max(0.0, whole_s - step_of(rows_s))
        return ServerParts(server_core_s=server_s, client_s=rows_s, step_s=left_s, host_cores=host_cores)
    return ServerParts(
        server_core_s=server_s, client_s=_solved(step_of, whole_s - step_s), step_s=step_s, host_cores=host_cores
    )


def _solved(step_of: Callable[[float], float], seconds: float) -> float:
    """Return what rows take where a step takes so long, or next to nothing where all else takes as long already."""
    low, high = LEAST_CLIENT_S, max(LEAST_CLIENT_S, seconds)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if step_of(middle) < seconds else (low, middle)
    return low


def with_fed_units(whole: Whole, host_cores: Mapping[str, int]) -> Whole:
    """Return a layout with the cores at least that feed its accelerators, and those of its servers."""
    fed = host_cores.get(whole.resource)
    if fed is None:
        return whole
    return msgspec.structs.replace(whole, cores=max(whole.cores, fed * whole.units + whole.servers))


def whole_cores(busy: float) -> int:
    """Return how many cores are to be had for so much of them."""
    return max(1, math.ceil(busy - SPARE_CORE))


def read_seconds(run: Run, batch: int, *, seconds: float) -> float | None:
    """Return the seconds of one core to read a batch of the run's data and to assemble it, as its trainer does.

    Small batches are read together. The first is left out: files are opened, and kernels compile. Beside the core's own
    time it counts what every read waits for, such as a disk, but not for other processes of a busy machine.
    """
    source = load_source(with_named_data(run))
    together = max(1, READ_SAMPLES // batch)
    loader = Loader(
        source,
        batch_size=batch,
        seed=run.training.seed,
        shuffle=run.data.shuffle,
        num_samples=run.data.samples,
        prefetch=0,
        pin=False,
        block_samples=run.data.block_samples,
        window_samples=run.data.window_samples,
    )
    there = (
        run.data.samples
        if source.num_samples is None
        else min(run.data.samples or source.num_samples, source.num_samples)
    )
    took: list[tuple[float, float, int]] = []

    def read() -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        until_s, first = time.perf_counter() + seconds, 0
        while len(took) <= MOST_READS and (time.perf_counter() < until_s or len(took) < 2):
            if there is not None and first + batch > there:
                first = 0
            last = first + together * batch if there is None else min(there, first + together * batch)
            begun_s, begun_core_s, begun_late_s = time.perf_counter(), time.thread_time(), _kept_from_cores_s()
            whole = loader.read(first, last)
            parts: Sequence[Batch] = whole.split(batch) if together > 1 else [whole]
            core_s, late_s = time.thread_time() - begun_core_s, _kept_from_cores_s() - begun_late_s
            waited_s = time.perf_counter() - begun_s - core_s - late_s
            took.append((core_s, max(0.0, waited_s), max(1, whole.num_samples)))
            first += max(1, len(parts)) * batch

    thread = threading.Thread(target=read, name="dovetail-reads")
    thread.start()
    thread.join()
    if len(took) < 2:
        return None
    cores_s = statistics.median(core_s * batch / samples for core_s, _, samples in took[1:])
    return cores_s + min(waited_s * batch / samples for _, waited_s, samples in took[1:])


def _kept_from_cores_s() -> float:
    """Return how long this thread could have run and had no core: others ran, or a quota was used up."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def machine_here(machine: Machine, problem: Problem) -> SharedMachine:
    """Return this machine as a problem has it: cores and memory that may be used, and its GPUs where it has some."""
    types = [resource.name for resource in problem.resources if problem.kind_of(resource) == "gpu"]
    units = {name: machine.gpus for name in types if machine.gpus}
    return SharedMachine(name="here", cores=machine.cores, memory_bytes=machine.memory_bytes, units=units)
