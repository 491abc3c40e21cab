"""A planning problem: work to do, types to rent, layers to place, and the links between types."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from dovetail.errors import MOST_LISTED, SpecError, did_you_mean
from dovetail.spec.beside import Beside, check_beside
from dovetail.spec.checks import check_number, check_whole_number
from dovetail.spec.first_node import FirstNode
from dovetail.spec.layer import Layer
from dovetail.spec.link import Link, SiteLink, check_site_links, link_between
from dovetail.spec.machine import SharedMachine, check_machines
from dovetail.spec.resource import Kind, ResourceType

_CAME_LATER = ("site_links", "machines", "beside", "first_node")


class Training(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work: `samples` seen `epochs` times, at no less than `min_samples_per_s`."""

    samples: Annotated[int, Meta(description="how many samples one epoch has, e.g. samples = 45_840_617")]
    batch: Annotated[int, Meta(description="the batch that the layers' times were measured for, e.g. batch = 4096")]
    epochs: Annotated[float, Meta(description="how often the samples are seen, e.g. epochs = 1")] = 1.0
    min_samples_per_s: Annotated[
        float, Meta(description="the throughput floor, e.g. min_samples_per_s = 200_000; 0 = no floor")
    ] = 0.0

    def __post_init__(self) -> None:
        """Refuse an amount of work that is none."""
        check_whole_number(self, "samples", at_least=1)
        check_whole_number(self, "batch", at_least=1)
        check_number(self, "epochs", above=0)
        check_number(self, "min_samples_per_s", at_least=0)

    @property
    def total_samples(self) -> float:
        """Samples over all epochs."""
        return float(self.samples) * self.epochs


class Problem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a planner needs to know. Layers stand in an order in which each comes after those it reads."""

    training: Annotated[Training, Meta(description="the table [training]: samples, epochs, batch, min_samples_per_s")]
    resources: Annotated[
        tuple[ResourceType, ...], Meta(description="one table [[resource]] for each type that can be rented")
    ] = field(name="resource")
    layers: Annotated[tuple[Layer, ...], Meta(description="one table [[layer]] for each layer, in order")] = field(
        name="layer"
    )
    links: Annotated[
        tuple[Link, ...], Meta(description="one table [[link]] for each pair of types that can be neighbours")
    ] = field(name="link", default=())
    site_links: Annotated[
        tuple[SiteLink, ...], Meta(description="one table [[site_link]] for each pair of sites that can work together")
    ] = field(name="site_link", default=())
    machines: Annotated[
        tuple[SharedMachine, ...],
        Meta(description="one table [[machine]] for each machine, or kind of machine, that units share"),
    ] = field(name="machine", default=())
    beside: Annotated[
        Beside | None, Meta(description="the table [beside]: what runs beside the layers; absent: not priced")
    ] = None
    first_node: Annotated[
        FirstNode | None,
        Meta(description="the table [first_node]: what runs launcher, coordinator and servers; absent: not priced"),
    ] = None

    def __post_init__(self) -> None:
        """Refuse what does not fit together, then put the layers into planning order."""
        if not self.resources:
            raise SpecError("is empty, expected at least one type", key="resource", hint="add a table [[resource]]")
        if not self.layers:
            raise SpecError("is empty, expected at least one layer", key="layer", hint="add a table [[layer]]")
        _check_unique("resource", [resource.name for resource in self.resources])
        _check_unique("layer", [layer.name for layer in self.layers])
        _check_layers(self.layers, self.resources)
        _check_links(self.links, self.resources)
        _check_sites(self.site_links, self.resources)
        _check_unique("machine", [machine.name for machine in self.machines])
        types, cpu_types = [resource.name for resource in self.resources], self.cpu_types
        check_machines(self.machines, types=types, cpu_types=cpu_types)
        if self.beside is not None:
            has_embeddings = any(layer.kind == "embedding" for layer in self.layers)
            check_beside(self.beside, types=types, cpu_types=cpu_types, has_embeddings=has_embeddings)
        msgspec.structs.force_setattr(self, "layers", _in_reading_order(self.layers))

    @property
    def is_chain(self) -> bool:
        """Whether every layer reads the layer before it and nothing else."""
        return list(self.edges()) == [(position - 1, position) for position in range(1, len(self.layers))]

    @property
    def min_samples_per_s(self) -> float:
        """The throughput floor."""
        return self.training.min_samples_per_s

    def with_floor(self, min_samples_per_s: float) -> Problem:
        """Return the problem with another throughput floor."""
        training = msgspec.structs.replace(self.training, min_samples_per_s=min_samples_per_s)
        return msgspec.structs.replace(self, training=training)

    def resource(self, name: str) -> ResourceType:
        """Return a type by name."""
        return next(resource for resource in self.resources if resource.name == name)

    def kind_of(self, resource: ResourceType) -> Kind:
        """Return a type's kind; where no type says its own, the cheapest is the cpu and the others are gpus."""
        if any(other.kind is not None for other in self.resources):
            return resource.kind or "other"
        cheapest = min(self.resources, key=lambda other: other.price_per_hour)
        return "cpu" if resource.name == cheapest.name else "gpu"

    @property
    def cpu_types(self) -> list[str]:
        """The types whose units are cores."""
        return [resource.name for resource in self.resources if self.kind_of(resource) == "cpu"]

    @property
    def first_node_per_hour(self) -> float:
        """What every plan pays an hour for the first node; 0 where there is none to pay for."""
        return 0.0 if self.first_node is None else self.first_node.price_per_hour

    def as_in_paper(self) -> Problem:
        """Return the problem as HeterPS has it: units share no machine, and nothing runs beside the layers or them."""
        return msgspec.structs.replace(self, machines=(), beside=None, first_node=None)

    def edges(self) -> Iterator[tuple[int, int]]:
        """Yield (producer, consumer) as positions in `layers`."""
        return _edges(self.layers)

    def link(self, source: str, target: str) -> Link | None:
        """Return the link that carries bytes from one type to another, or None where there is none."""
        backwards = None
        for link in self.links:
            if (link.source, link.target) == (source, target):
                return link
            if (link.source, link.target) == (target, source):
                backwards = link
        return backwards

    def site_link(self, source: str, target: str) -> SiteLink | None:
        """Return the link between the sites of two types; None inside a site, and where there is none."""
        one, other = self.resource(source).site, self.resource(target).site
        if one is None or other is None or one == other:
            return None
        return link_between(self.site_links, one, other)

    def can_join(self, one: str, other: str) -> bool:
        """Say whether stages on two types can be neighbours.

        Types of two sites need a link between the sites; any others a link between the types where there are links.
        """
        if self.site_links and self.resource(one).site != self.resource(other).site:
            return self.site_link(one, other) is not None
        return not self.links or self.link(one, other) is not None

    def digest(self) -> str:
        """Return a short hash of the whole problem, so that a plan can say what it was made for."""
        same_numbers = msgspec.convert(msgspec.to_builtins(self), Problem)  # a price of 2 is a price of 2.0
        parts = {
            part.encode_name: msgspec.Raw(msgspec.json.encode(getattr(same_numbers, part.name), order="deterministic"))
            for part in msgspec.structs.fields(Problem)
            if part.name not in _CAME_LATER or getattr(self, part.name)  # plans made before carry a hash without
        }
        canonical = msgspec.json.encode(parts)
        return hashlib.sha256(canonical).hexdigest()[:16]


def _check_unique(key: str, names: Sequence[str]) -> None:
    """Refuse two things of one name."""
    first_seen: dict[str, int] = {}
    for position, name in enumerate(names):
        if name in first_seen:
            raise SpecError(
                f'is "{name}", the name of {key}[{first_seen[name]}] too',
                key=f"{key}[{position}].name",
                hint="give each its own name: plans and links refer to it",
            )
        first_seen[name] = position


def _check_layers(layers: Sequence[Layer], resources: Sequence[ResourceType]) -> None:
    """Refuse layers that name unknown types or layers, or that can run nowhere."""
    known = {resource.name: resource for resource in resources}
    names = [layer.name for layer in layers]
    for position, layer in enumerate(layers):
        key = f"layer[{position}]"
        for name in layer.on:
            if name not in known:
                raise SpecError(
                    f"names a resource that is not there (layer `{layer.name}`)",
                    key=f"{key}.on.{name}",
                    hint=did_you_mean(name, known),
                )
        if not any(known[name].units_to_be_had > 0 for name in layer.on):
            without = "every type in it has limit = 0" if layer.on else "it is empty"
            to_be_had = [resource.name for resource in resources if resource.units_to_be_had > 0]
            raise SpecError(
                f"lets layer `{layer.name}` run nowhere: {without}",
                key=f"{key}.on",
                hint=f"add its times on a type that can be had, e.g. [layer.on.{to_be_had[0]}]"
                if to_be_had
                else "raise the limit of a type: there are no units of any",
            )
        for before in layer.after or ():
            if before not in names:
                raise SpecError(
                    f'names "{before}", which is no layer', key=f"{key}.after", hint=did_you_mean(before, names)
                )


def _check_links(links: Sequence[Link], resources: Sequence[ResourceType]) -> None:
    """Refuse links to unknown types and links given twice."""
    names = [resource.name for resource in resources]
    sites = {resource.site for resource in resources}
    seen: set[tuple[str, str]] = set()
    for position, link in enumerate(links):
        for key, name in (("from", link.source), ("to", link.target)):
            if name not in names:
                raise SpecError(
                    f'is "{name}", which is no resource',
                    key=f"link[{position}].{key}",
                    hint="a link between sites is a table [[site_link]]"
                    if name in sites
                    else did_you_mean(name, names),
                )
        if (link.source, link.target) in seen:
            raise SpecError(
                f"gives the way from `{link.source}` to `{link.target}` a second time",
                key=f"link[{position}]",
                hint="keep one table [[link]] for each direction",
            )
        seen.add((link.source, link.target))


def _check_sites(links: Sequence[SiteLink], resources: Sequence[ResourceType]) -> None:
    """Refuse links between sites that are not there, and types that stand nowhere while others stand at sites."""
    if not links:
        return
    for position, resource in enumerate(resources):
        if resource.site is None:
            raise SpecError(
                f"is missing: there are links between sites, and type `{resource.name}` stands at none",
                key=f"resource[{position}].site",
                hint=f'say where its units stand, e.g. site = "{links[0].source}"',
            )
    sites = dict.fromkeys(resource.site for resource in resources if resource.site is not None)
    check_site_links(links, sites, key="site_link")


def _edges(layers: Sequence[Layer]) -> Iterator[tuple[int, int]]:
    """Yield (producer, consumer) positions; a layer without `after` reads the one before it."""
    position_of = {layer.name: position for position, layer in enumerate(layers)}
    for position, layer in enumerate(layers):
        if layer.after is None:
            if position > 0:
                yield position - 1, position
        else:
            for before in dict.fromkeys(layer.after):
                yield position_of[before], position


def _in_reading_order(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Return the layers so that each stands after those it reads, otherwise as they came (Kahn's algorithm).

    When anything moves, "the layer before" is written out in `after`, so that moving changes no edge.
    """
    edges = list(_edges(layers))
    if all(producer < consumer for producer, consumer in edges):
        return layers
    waiting_for = [0] * len(layers)
    readers: list[list[int]] = [[] for _ in layers]
    for producer, consumer in edges:
        waiting_for[consumer] += 1
        readers[producer].append(consumer)
    ready = [position for position, count in enumerate(waiting_for) if count == 0]
    order: list[int] = []
    while ready:
        position = heapq.heappop(ready)
        order.append(position)
        for reader in readers[position]:
            waiting_for[reader] -= 1
            if waiting_for[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(layers):
        raise _circle_error(layers, edges, stuck={position for position, count in enumerate(waiting_for) if count > 0})
    sources: dict[int, list[str]] = {position: [] for position in order}
    for producer, consumer in edges:
        sources[consumer].append(layers[producer].name)
    return tuple(msgspec.structs.replace(layers[position], after=tuple(sources[position])) for position in order)


def _circle_error(layers: Sequence[Layer], edges: Sequence[tuple[int, int]], *, stuck: set[int]) -> SpecError:
    """Return the complaint about layers that read each other in a circle, found among those that wait for ever."""
    reads = {consumer: producer for producer, consumer in edges if {producer, consumer} <= stuck}
    walked: dict[int, None] = {}
    position = min(stuck)
    while position not in walked:  # each stuck layer reads a stuck one, so the walk comes back to where it has been
        walked[position] = None
        position = reads[position]
    walk = list(walked)
    circle = walk[walk.index(position) :]
    start = circle.index(min(circle))  # the first of them reads a later one, so it has an `after`
    names = [f"`{layers[member].name}`" for member in (*circle[start:], *circle[: start + 1])]
    shown = names if len(names) <= MOST_LISTED else [*names[: MOST_LISTED - 2], "...", names[-1]]
    return SpecError(
        f"closes a circle: {' reads '.join(shown)}",
        key=f"layer[{min(circle)}].after",
        hint="a layer can read only layers that do not read it, directly or through others",
    )
