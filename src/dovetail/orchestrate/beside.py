"""What runs beside the layers of a model, and layouts as a whole: measured by short runs of the run's own parts.

Everything has its share of the time that is given for all. A part that was not reached is left out, and that is said:
the planner then has no formula for layouts that need it.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import torch

from dovetail.cost.beside import micro_batches
from dovetail.cost.pipeline import sync_step_seconds
from dovetail.data.batch import Batch
from dovetail.data.loader import Loader
from dovetail.orchestrate.short_runs import ShortRun, short_run
from dovetail.runtime.planned.from_plan import Machine, Tell, quietly
from dovetail.runtime.planned.layouts import (
    in_one_process,
    over_servers,
    over_workers,
    rows_on_gpu,
    with_memory_for_rows,
)
from dovetail.runtime.prepare.run_folder import load_source, with_named_data
from dovetail.runtime.trainer.batches_ahead import READ_SAMPLES
from dovetail.spec import Beside, Place, Problem, SharedMachine, Whole
from dovetail.spec.run import Run, RunWorker
from dovetail.units import format_duration

MOST_S = 30.0
"""For all that is measured beside the layers."""
LEAST_S = 2.0
"""A run that has less is not begun: starting takes as long."""
STEADY_PART = 0.5
"""Of a part's time that is measured over; the rest is starting, and what is left goes to the parts after it."""
MOST_SHARES = 2.5
"""Of a part's time that it may take where it has not begun to step by then."""
READ_S = 1.5
MOST_READS = 30
SPARE_CORE = 0.25
"""Of a core that a process may take beyond a whole number of them before it is given another."""
LEAST_CLIENT_S = 1e-6
WORKER = "worker"
AT_HAND = ("cpu", "gpu")
"""What the types of this machine are called."""
SAY_EVERY_S = 5.0


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
        """Return what the next part may take: its share, by weight, of what is left."""
        weights = self._weights[self._begun :]
        self._begun += 1
        return self.left_s * weights[0] / sum(weights)

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
        self, run: Run, problem: Problem, machine: Machine, *, seconds: float = MOST_S, tell: Tell = quietly
    ) -> None:
        """Get ready to measure for the problem's batch, on those of its types that this machine has."""
        run = msgspec.structs.replace(with_named_data(run), stages=[])
        self._run = with_memory_for_rows(run, problem.layers, machine.memory_bytes)
        self._problem, self._machine, self._tell = problem, machine, tell
        self._batch = problem.training.batch
        here = [resource for resource in problem.resources if resource.name in AT_HAND]
        kinds = {problem.kind_of(resource): resource.name for resource in here}
        self._is_all_here = len(here) == len(problem.resources)
        self._cpu = kinds.get("cpu")
        self._gpu = kinds.get("gpu") if machine.gpus else None
        self._found = _Found()
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
                part.measure(share_s)
            except Exception as error:  # what cannot run here cannot be planned for, and the rest can
                self._tell(f"{part.words} cannot be measured: {type(error).__name__}: {error}")
        found = self._found
        beside = Beside(
            read_core_s=found.read_core_s or 0.0,
            host_cores=found.host_cores,
            micro_batch=self._run.training.micro_batch,
            step_s=found.step_s or 0.0,
            server_core_s=found.server_core_s,
            client_s=found.client_s,
            wholes=tuple(with_fed_units(whole, found.host_cores) for whole in found.wholes),
        )
        machines = (machine_here(self._machine, self._problem),) if self._is_all_here else ()
        return msgspec.structs.replace(self._problem, beside=beside, machines=machines)

    def _all_parts(self) -> list[_Part]:
        """Return what is measured: what plans most depend on first. Kernels for a GPU compile, processes start."""
        cores = self._machine.cores
        parts = [_Part("reading", self._read, weight=1.0, least_s=0.0)]
        if self._gpu is not None:
            parts.append(_Part("one process on a GPU", partial(self._local, on_gpu=True), weight=4.0))
        if self._cpu is not None:
            for threads in sorted({cores, max(1, cores // 4), 1}, reverse=True):
                words = f"one process on {threads} core{'s' * (threads != 1)}"
                parts.append(_Part(words, partial(self._local, on_gpu=False, threads=threads), weight=1.5))
            parts.append(_Part("a server and a worker on a core", partial(self._servers, on_gpu=False), weight=3.0))
        if self._gpu is not None:
            parts.append(_Part("a server and a worker on a GPU", partial(self._servers, on_gpu=True), weight=3.0))
        if self._cpu is not None and cores > 1:
            parts.append(_Part("two workers that own the rows", self._sharded, weight=2.0))
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

    def _servers(self, share_s: float, *, on_gpu: bool) -> None:
        """Measure a server and a worker: each part of them, and the two as a whole."""
        resource = self._gpu if on_gpu else self._cpu
        worker = RunWorker(name=WORKER, device="cuda" if on_gpu else "cpu")
        run = over_servers(self._run, [worker], servers=1, readers=1)
        found = self._short(f"a server and a worker on {resource}", run, share_s)
        if found is None or resource is None:
            return
        parts = server_parts(
            found,
            self._layers_s(resource),
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

    def _sharded(self, share_s: float) -> None:
        """Measure two workers that own the rows."""
        run = over_workers(self._run, [RunWorker(count=2)], readers=2)
        found = self._short("two workers that own the rows", run, share_s)
        if found is not None and self._cpu is not None:
            self._keep("sharded", self._cpu, 2, 0, 2, found)

    # -- what they have in common --------------------------------------------------------------------------------------

    def _short(self, words: str, run: Run, share_s: float) -> ShortRun | None:
        most_s = min(MOST_SHARES * share_s, self._allowance.left_s)
        found = short_run(run, self._batch, seconds=STEADY_PART * share_s, limit_s=share_s, most_s=most_s)
        if found is None:
            self._tell(f"{words}: no two steps were done in {most_s:.0f} s")
            return None
        rate, cores = self._batch / found.seconds_per_batch, found.cores
        self._tell(f"{words}: {rate:,.0f} samples/s, {cores:.1f} cores busy")
        return found

    def _keep(self, place: Place, resource: str, units: int, servers: int, least: int, found: ShortRun) -> None:
        """Note a layout as a whole; it takes the cores that it kept busy, and `least` of them."""
        cores = max(least, min(self._machine.cores, whole_cores(found.cores)))
        self._found.wholes.append(
            Whole(
                place=place,
                resource=resource,
                units=units,
                servers=servers,
                cores=cores,
                seconds_per_batch=found.seconds_per_batch,
                error=found.error,
            )
        )

    def _layers_s(self, resource: str) -> float:
        """Return what one unit takes for the layers of a batch whose rows are with servers."""
        layers = [layer for layer in self._problem.layers if layer.kind != "embedding" and resource in layer.on]
        return sum(layer.on[resource].compute_s for layer in layers)


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
