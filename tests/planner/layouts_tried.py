"""Every layout of a small problem, tried one by one and priced here: nothing of planner or evaluator is used."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from dovetail.spec import (
    Beside,
    Layer,
    LayerTime,
    Link,
    Place,
    Problem,
    ResourceType,
    RowCacheCurve,
    SharedMachine,
    SiteLink,
    Training,
    Whole,
)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A layout that fits, what it takes for a batch, and what it costs."""

    place: str | None
    stages: tuple[tuple[str, int, int, int], ...]
    servers: int
    readers: int
    batch_s: float
    usd_per_hour: float
    usd: float
    samples_per_s: float


def rows_of(layer: Layer) -> float:
    return layer.weight_bytes + layer.optimizer_bytes + layer.index_bytes if layer.kind == "embedding" else 0.0


def held(layers: list[Layer], units: int, *, rows: bool = True) -> float:
    """Return the bytes on each of so many units."""
    total = 0.0
    for layer in layers:
        kept = layer.output_bytes if layer.activation_bytes is None else layer.activation_bytes
        total += kept / units
        if layer.kind == "embedding":
            total += rows_of(layer) / units if rows else 0.0
        else:
            total += 2 * layer.weight_bytes + layer.optimizer_bytes + layer.index_bytes
    return total


class Trial:
    """All layouts of one problem."""

    def __init__(self, problem: Problem, *, max_stages: int | None = None) -> None:
        self.problem, self.beside = problem, problem.beside
        self.max_stages = max_stages or len(problem.layers)
        self.types = {resource.name: resource for resource in problem.resources}
        self.is_cpu = {resource.name: resource.kind == "cpu" for resource in problem.resources}
        cores = [resource for resource in problem.resources if resource.kind == "cpu"]
        self.core = min(cores, key=lambda each: each.price_per_hour) if cores else None
        self.machines = [machine for machine in problem.machines for _ in range(machine.count)]
        self.cores = sum(machine.cores for machine in self.machines) if self.machines else math.inf
        embeddings = [layer for layer in problem.layers if layer.kind == "embedding"]
        all_out = sum(layer.output_bytes for layer in embeddings)
        self.share = {e.name: e.output_bytes / all_out if all_out else 1 / len(embeddings) for e in embeddings}
        self.rows = sum(rows_of(layer) for layer in embeddings)

    def stands_here(self, name: str) -> bool:
        return not self.machines or any(name in machine.units for machine in self.machines)

    def feeding(self, name: str) -> int:
        if self.beside is None or self.is_cpu[name] or not self.stands_here(name):
            return 0
        return self.beside.host_cores.get(name, 0)

    def there(self, name: str) -> float:
        """Return how many units of a type there are, that can be fed."""
        limit = self.types[name].limit
        most = math.inf if limit is None else limit
        if self.machines and not self.is_cpu[name] and self.stands_here(name):
            fed = self.feeding(name)
            has = [machine.units.get(name, 0) for machine in self.machines]
            if fed:
                has = [min(units, m.cores // fed) for units, m in zip(has, self.machines, strict=True)]
            most = min(most, sum(has))
        return most

    def all(self) -> Iterator[Tried]:
        known: set[tuple[str, str, int, int]] = set()
        if self.beside is not None:
            for whole in self.beside.wholes:
                known.add((whole.place, whole.resource, whole.units, whole.servers))
                if whole.place in self.beside.places:
                    yield from self.whole(whole)
            if "local" in self.beside.places:
                yield from self.local(known)
            can_be_served = self.beside.server_core_s is not None and "servers" in self.beside.places
            if can_be_served and self.rows <= self.memory():
                yield from self.over_servers(known)
        else:
            yield from self.over_servers(known)

    def memory(self) -> float:
        return sum(math.inf if m.memory_bytes is None else m.memory_bytes for m in self.machines) or math.inf

    def fits(self, units: dict[str, int], extra: int) -> bool:
        """Say whether units, and cores that are no units, are to be had."""
        for name, count in units.items():
            more = extra if self.core is not None and name == self.core.name else 0
            if count + more > self.there(name):
                return False
        if self.core is not None and self.core.name not in units and extra > self.there(self.core.name):
            return False
        return sum(count for name, count in units.items() if self.is_cpu[name]) + extra <= self.cores

    def tried(
        self, place: str | None, stages: tuple[tuple[str, int, int, int], ...], servers: int, readers: int,
        batch_s: float, extra: int, egress: float = 0.0,
    ) -> Tried:  # fmt: skip
        training = self.problem.training
        hourly = sum(self.types[name].price_per_hour * units for name, _, _, units in stages)
        hourly += extra * (self.core.price_per_hour if self.core is not None else 0.0)
        batches = training.samples * training.epochs / training.batch
        return Tried(
            place=place, stages=stages, servers=servers, readers=readers, batch_s=batch_s, usd_per_hour=hourly,
            usd=batches * batch_s / 3600 * hourly + batches * egress, samples_per_s=training.batch / batch_s,
        )  # fmt: skip

    def largest(self, name: str) -> float:
        """Return the cores of the largest machine that one process on a type can be on."""
        if not self.machines:
            return math.inf
        if self.is_cpu[name] or not self.stands_here(name):
            return max(machine.cores for machine in self.machines)
        return max((machine.cores for machine in self.machines if machine.units.get(name, 0) > 0), default=-1)

    def whole(self, whole: Whole) -> Iterator[Tried]:
        name, last = whole.resource, len(self.problem.layers) - 1
        extra = whole.cores - (whole.units if self.is_cpu[name] else 0)
        if not all(name in layer.on for layer in self.problem.layers) or not self.fits({name: whole.units}, extra):
            return
        if whole.place == "local" and whole.cores > self.largest(name):
            return
        stages = ((name, 0, last, whole.units),)
        yield self.tried(whole.place, stages, whole.servers, 0, whole.seconds_per_batch, extra)

    def local(self, known: set[tuple[str, str, int, int]]) -> Iterator[Tried]:
        assert self.beside is not None
        layers, last = list(self.problem.layers), len(self.problem.layers) - 1
        reading = range(1, MOST + 1) if self.beside.read_core_s > 0 else (0,)
        for name in self.types:
            if not all(name in layer.on for layer in layers):
                continue
            for units in range(1, MOST + 1) if self.is_cpu[name] else (1,):
                missed_s = self.missed_s(name, units)
                if ("local", name, units, 0) in known or missed_s is None:
                    continue
                compute = sum(
                    (t := e.on[name]).compute_s * (1 - t.compute_parallel + t.compute_parallel / units) for e in layers
                )
                comm = sum((t := e.on[name]).comm_s * (1 - t.comm_parallel + t.comm_parallel / units) for e in layers)
                for readers in reading:
                    extra = readers + self.feeding(name)
                    cores = extra + (units if self.is_cpu[name] else 0)
                    if cores > self.largest(name) or not self.fits({name: units}, extra):
                        continue
                    read_s = self.beside.read_core_s / readers if readers else 0.0
                    batch_s = max(compute, comm + missed_s, read_s)
                    yield self.tried("local", ((name, 0, last, units),), 0, readers, batch_s, extra)

    def missed_s(self, name: str, threads: int) -> float | None:
        """Return what rows take that are not in memory; None where what must be in memory is not."""
        layers = list(self.problem.layers)
        has, holds = self.types[name].memory_bytes, held(layers, 1)
        on = [m for m in self.machines if self.is_cpu[name] or m.units.get(name, 0) > 0]
        beside = max((math.inf if m.memory_bytes is None else m.memory_bytes for m in on), default=math.inf)
        if self.is_cpu[name]:
            if math.isinf(beside):
                beside = math.inf if has is None else has * threads
            return 0.0 if holds <= beside * (1 + 1e-9) else None
        if has is None or holds <= has:
            return 0.0
        caches = [layer for layer in layers if layer.on[name].cache is not None]
        if not caches:
            return None
        assert len(caches) == 1
        (layer,) = caches
        cache, room = layer.on[name].cache, has - (holds - rows_of(layer))
        if room < max(1.0, cache.least_bytes) or rows_of(layer) - room > beside:
            return None
        return cache.miss_s * (1 - cache.hit_ratio(room))

    def over_servers(self, known: set[tuple[str, str, int, int]]) -> Iterator[Tried]:
        beside, layers = self.beside, self.problem.layers
        count = len(layers)
        place = None if beside is None else "servers"
        for assignment in itertools.product(self.types, repeat=count):
            runs = [(name, len(list(group))) for name, group in itertools.groupby(assignment)]
            ends = list(itertools.accumulate(length for _, length in runs))
            spans = [(name, end - length, end - 1) for (name, length), end in zip(runs, ends, strict=True)]
            if len(spans) > self.max_stages or not all(self.can_run(layers[i], assignment[i]) for i in range(count)):
                continue
            egress = 0.0
            for (one, _, last), (other, _, _) in itertools.pairwise(spans):
                cost = self.crossing(one, other)
                if cost is None:
                    break
                egress += cost * layers[last].output_bytes
            else:
                yield from self.counted(place, spans, egress, known)

    def can_run(self, layer: Layer, name: str) -> bool:
        if name not in layer.on or self.there(name) < 1:
            return False
        return self.beside is None or layer.kind != "embedding" or name in self.beside.client_s

    def crossing(self, one: str, other: str) -> float | None:
        """Return USD a byte over a cut, both ways; None where there may be none."""
        if not self.problem.can_join(one, other):
            return None
        there, back = self.problem.site_link(one, other), self.problem.site_link(other, one)
        return 0.0 if there is None or back is None else (there.price_per_gb + back.price_per_gb) / 1e9

    def counted(
        self, place: str | None, spans: list[tuple[str, int, int]], egress: float, known: set[tuple[str, str, int, int]]
    ) -> Iterator[Tried]:
        """Yield every number of units, servers and readers of some stages."""
        beside = self.beside
        most = [int(min(MOST, self.there(name))) for name, _, _ in spans]
        reading = range(1, MOST + 1) if beside is not None and beside.read_core_s > 0 else (0,)
        serving = range(1, MOST + 1) if beside is not None else (0,)
        for units in itertools.product(*(range(1, each + 1) for each in most)):
            used: dict[str, int] = {}
            fed = 0
            for (name, _, _), k in zip(spans, units, strict=True):
                used[name] = used.get(name, 0) + k
                fed += self.feeding(name) * k
            if not self.fits(used, fed):
                continue
            times = self.times(spans, units)
            if times is None:
                continue
            for servers in serving:
                if not self.fits(used, fed + servers):
                    break
                if len(spans) == 1 and ("servers", spans[0][0], units[0], servers) in known:
                    continue
                step_s = self.step_seconds(times, units, servers)
                for readers in reading:
                    if not self.fits(used, fed + servers + readers):
                        break
                    batch_s = step_s
                    if beside is not None:
                        batch_s = beside.step_s + max(step_s, beside.read_core_s / readers if readers else 0.0)
                    stages = tuple((*span, k) for span, k in zip(spans, units, strict=True))
                    yield self.tried(place, stages, servers, readers, batch_s, fed + servers + readers, egress)

    def step_seconds(self, times: list[float], units: tuple[int, ...], servers: int) -> float:
        """Return what a step takes, what is fixed left out."""
        if self.beside is None:
            return max(times)
        seconds, workers = [*times, (self.beside.server_core_s or 0.0) / servers], [*units, servers]
        if self.beside.micro_batch is None:
            return max(seconds)
        pieces = units[0] * math.ceil(self.problem.training.batch / units[0] / self.beside.micro_batch)
        passing = [k * s / max(pieces, k) for k, s in zip(workers, seconds, strict=True)]
        return max(seconds[i] + sum(p for j, p in enumerate(passing) if j != i) for i in range(len(seconds)))

    def times(self, spans: list[tuple[str, int, int]], units: tuple[int, ...]) -> list[float] | None:
        """Return what each stage takes; None where one does not fit into its units' memory."""
        beside, layers, problem = self.beside, self.problem.layers, self.problem
        found = []
        for position, ((name, first, last), k) in enumerate(zip(spans, units, strict=True)):
            mine = list(layers[first : last + 1])
            has = self.types[name].memory_bytes
            if has is not None and held(mine, k, rows=beside is None) > has:
                return None
            compute = comm = 0.0
            for layer in mine:
                time = layer.on[name]
                if beside is not None and layer.kind == "embedding":
                    shared = beside.client_parallel.get(name, 1.0)
                    compute += beside.client_s[name] * self.share[layer.name] * (1 - shared + shared / k)
                    continue
                compute += time.compute_s * (1 - time.compute_parallel + time.compute_parallel / k)
                comm += time.comm_s * (1 - time.comm_parallel + time.comm_parallel / k)
            for neighbour, cut in ((position - 1, first - 1), (position + 1, last)):
                if not 0 <= neighbour < len(spans):
                    continue
                payload, other = layers[cut].output_bytes, spans[neighbour][0]
                for one, two in ((name, other), (other, name)):
                    link, site = problem.link(one, two), problem.site_link(one, two)
                    comm += 0.0 if link is None else payload / link.bytes_per_s / k + link.latency_s
                    comm += 0.0 if site is None else payload / site.bytes_per_s + site.latency_s
            found.append(max(compute, comm))
        return found


MOST = 8
"""So many units, servers and readers there are at most, in every problem that is drawn."""


def drawn(seed: int) -> tuple[Problem, int | None]:
    """Return a small problem with machines and what runs beside its layers, and the most stages it may have."""
    draw = random.Random(seed)
    names = ["cpu", "gpu", *draw.sample(["tpu", "old"], k=draw.choice([0, 0, 0, 1]))]
    layers_count = draw.choice([1, 2, 3, 4] if len(names) == 2 else [1, 2, 3])
    has_machine, has_beside = draw.random() < 0.85, draw.random() < 0.9
    cpu_like = {"cpu", "old"}
    has_sites = draw.random() < 0.1
    resources = tuple(
        ResourceType(
            name=name,
            kind="cpu" if name in cpu_like else "gpu",
            price_per_hour=draw.choice([0.0, 1.0]) * draw.uniform(0.5, 4) + (0.1 if name in cpu_like else 1.0),
            limit=draw.randint(1, MOST) if not has_machine or name == "tpu" or draw.random() < 0.3 else None,
            memory_bytes=draw.uniform(20, 200) if draw.random() < 0.3 else None,
            site=draw.choice(["east", "west"]) if has_sites else None,
        )
        for name in names
    )
    num_tables = draw.choice([0, 1, 1, 2])
    layers = tuple(drawn_layer(draw, i, names, is_table=i < num_tables) for i in range(layers_count))
    if not has_beside:  # then any stage may keep some rows, which is not tried here
        layers = tuple(without_cache(layer) for layer in layers)
    links = ()
    if draw.random() < 0.3:
        links = tuple(
            Link(source=a, target=b, bytes_per_s=draw.uniform(20, 400), latency_s=draw.choice([0.0, 0.05]))
            for a, b in itertools.combinations(names, 2)
            if draw.random() < 0.8
        )
    site_links = ()
    if has_sites:
        site_links = (SiteLink(source="east", target="west", bytes_per_s=500.0, latency_s=0.02, price_per_gb=2e4),)
        if {resource.site for resource in resources} != {"east", "west"}:
            site_links = ()
    batch = draw.choice([64, 100])
    machines = ()
    if has_machine:
        machines = tuple(
            SharedMachine(
                name=f"m{number}",
                cores=draw.randint(1, 6 if number else MOST),
                memory_bytes=draw.uniform(50, 400) if draw.random() < 0.3 else None,
                units={"gpu": draw.randint(0, 2)} if draw.random() < 0.9 or number else {},
            )
            for number in range(draw.choice([1, 1, 1, 2]))
        )
        if sum(machine.cores for machine in machines) > MOST or not any("gpu" in m.units for m in machines):
            machines = (SharedMachine(name="m", cores=draw.randint(1, MOST), units={"gpu": 2}),)
    problem = Problem(
        training=Training(samples=1000, batch=batch, min_samples_per_s=0.0),
        resources=resources,
        layers=layers,
        links=links,
        site_links=site_links,
        machines=machines,
        beside=drawn_beside(draw, names, cpu_like, batch) if has_beside else None,
    )
    max_stages = draw.choice([None, None, None, 1, 2])
    if problem.beside is not None:  # drawn apart, so that all else of a seed stays as it is
        problem = msgspec.structs.replace(problem, beside=more_of_beside(random.Random(f"more {seed}"), problem.beside))
    return problem, max_stages


def more_of_beside(draw: random.Random, beside: Beside) -> Beside:
    shared = {name: draw.choice([0.0, 0.5, 0.9]) for name in beside.client_s if draw.random() < 0.4}
    wholes = tuple(  # servers and readers that take turns with others
        msgspec.structs.replace(whole, cores=max(0, whole.cores - draw.randint(0, whole.servers)))
        for whole in beside.wholes
    )
    places: tuple[Place, ...] = draw.choice([("servers",), ("local", "servers"), ("local", "sharded")])
    return msgspec.structs.replace(
        beside, client_parallel=shared, wholes=wholes, places=places if draw.random() < 0.2 else beside.places
    )


def drawn_layer(draw: random.Random, number: int, names: list[str], *, is_table: bool) -> Layer:
    times = {
        name: LayerTime(
            compute_s=draw.choice([0.0, 1.0, 1.0]) * draw.uniform(0.1, 2) / (4 if name in {"gpu", "tpu"} else 1) + 0.01,
            comm_s=draw.choice([0.0, 0.5]) * draw.uniform(0.1, 2),
            compute_parallel=draw.choice([1.0, 0.95, 0.8]),
            comm_parallel=draw.choice([1.0, 0.5]),
            cache=RowCacheCurve(hits=((10.0, 0.5), (30.0, 0.8), (60.0, 0.95)), miss_s=draw.uniform(0.1, 1))
            if is_table and number == 0 and name == "gpu" and draw.random() < 0.4
            else None,
        )
        for name in names
        if name == "cpu" or draw.random() < 0.85
    }
    return Layer(
        name=f"layer{number}",
        kind="embedding" if is_table else "fc",
        on=times,
        output_bytes=draw.choice([0.0, draw.uniform(1, 40)]),
        weight_bytes=draw.uniform(20, 120) if is_table else draw.uniform(0, 5),
        optimizer_bytes=draw.choice([0.0, 10.0]),
        activation_bytes=draw.choice([None, 2.0]),
    )


def without_cache(layer: Layer) -> Layer:
    on = {name: msgspec.structs.replace(time, cache=None) for name, time in layer.on.items()}
    return msgspec.structs.replace(layer, on=on)


def drawn_beside(draw: random.Random, names: list[str], cpu_like: set[str], batch: int) -> Beside:
    is_served = draw.random() < 0.85
    wholes: dict[tuple[str, str, int, int], Whole] = {}
    for _ in range(draw.choice([0, 0, 1, 2])):
        place, name = draw.choice(["local", "servers", "sharded"]), draw.choice(names)
        units = draw.randint(1, 3) if place != "local" or name in cpu_like else 1
        servers = draw.randint(1, 3) if place == "servers" else 0
        whole = Whole(
            place=place, resource=name, units=units, servers=servers,
            cores=units * (1 if name in cpu_like else 2) + servers + draw.randint(0, 2),
            seconds_per_batch=draw.uniform(0.2, 3),
        )  # fmt: skip
        wholes[place, name, units, servers] = whole
    return Beside(
        read_core_s=draw.choice([0.0, draw.uniform(0.05, 1), draw.uniform(0.5, 4)]),
        host_cores={name: draw.randint(0, 2) for name in names if name not in cpu_like and draw.random() < 0.8},
        micro_batch=draw.choice([None, 8, 16, 30, batch]),
        step_s=draw.choice([0.0, 0.1]),
        server_core_s=draw.choice([0.0, draw.uniform(0.05, 3)]) if is_served else None,
        client_s={name: draw.uniform(0.05, 1) for name in names if name == "cpu" or draw.random() < 0.8}
        if is_served
        else {},
        wholes=tuple(wholes.values()),
    )
