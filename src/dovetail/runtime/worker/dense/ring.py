"""Dense parameters in a ring: gradients summed by all-reduce while the backward pass goes on, one update everywhere.

A ring belongs to one generation of the run: it is never repaired, a new one is made. The update waits until the
coordinator has committed the step, so that a step counts everywhere or nowhere.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn

from dovetail.errors import DovetailError
from dovetail.runtime.checkpoint import RunManifest, checksums_in, load_dense, save_dense
from dovetail.runtime.dense.kernels import sum_of_squares
from dovetail.runtime.dense.optimizer import from_device, optimizer_of, to_device
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import (
    Apply,
    Assign,
    Holds,
    InRing,
    JoinRing,
    Message,
    Reduced,
    RingBroken,
    RingMeets,
    Saved,
    SaveDense,
    SaveFailed,
    Span,
    SumUp,
)
from dovetail.runtime.process import Process
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.dense.collective import Collective, ring_coder
from dovetail.runtime.worker.dense.rendezvous import Rendezvous, RendezvousServer, RendezvousStore
from dovetail.runtime.worker.dense.sync import DenseSync
from dovetail.runtime.worker.links.servers import Abandoned
from dovetail.runtime.worker.tasks.spans import now_s
from dovetail.runtime.worker.tasks.task import Task

dist: Any = torch.distributed
"""PyTorch does not list its stores and groups as public, though it documents them."""
BUCKET_BYTES = 1 << 19
"""Gradients that are summed together, as soon as the backward pass has all of them."""
RENDEZVOUS_S = 20.0
"""Of members who are all there to find each other."""
APPLIED_LOOK_S = 0.05
"""How often a member that waits for the commit looks whether it is still wanted; the commit itself wakes it."""
Tell = Callable[[Message], None]
Wanted = Callable[[], bool]


class RingSync(DenseSync):
    """One worker's place in one ring after the other, its copy of the dense parameters and of their optimizer state.

    The coordinator says who is in a ring; the servers know nothing of it.
    """

    def __init__(
        self, process: Process, model: ServedModel, tell: Tell, *, part: slice | None = None, stage: int = 0
    ) -> None:
        """Watch the gradients of a model; those of a `stage` are a `part` of the whole model's."""
        self._process, self._name, self._tell = process, process.name, tell
        self._values, self._gradients = model.values, model.gradients
        self._part, self._stage = part or slice(0, process.blueprint.dense_size), stage
        self._optimizer = optimizer_of(process.blueprint, self._part)
        self._state = to_device(self._optimizer.first_state(len(model.values)), model.values.device)
        self._clip = process.blueprint.run.optimizer
        self._steps = 0
        self._version = -1
        """Steps that the dense parameters hold; -1 before there are any."""
        self._era = -1
        """The generation that took up the checkpoint from which they come."""
        self._generation = 0
        self._joined = -1
        """The generation of the ring that this worker has a place in; the main thread writes it."""
        self._calls: queue.SimpleQueue[JoinRing | SumUp] = queue.SimpleQueue()
        self._group: Collective | None = None
        self._rendezvous: RendezvousServer | None = None
        self._store: RendezvousStore | None = None
        self._lock = threading.Lock()
        self._reduced: int | None = None
        self._applied = threading.Condition()
        self._saved: Saved | None = None
        self._watch(model.dense)

    def has_step(self, generation: int, step: int) -> bool:
        """Say whether this worker is in the ring of a generation, and holds so many steps: else nobody counts on it."""
        return self._joined == generation and self._version >= step

    def close(self) -> None:
        """Close the rendezvous, where this worker keeps one."""
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    # -- the coordinator's word, in the control thread -----------------------------------------------------------------

    def reset(self, generation: int) -> None:
        """Throw away the step under way, and say which parameters this worker holds."""
        self._generation = generation
        with self._lock:
            self._reduced = None  # summed and not applied: the step is done again
        self._tell(Holds(name=self._name, generation=generation, era=self._era, version=self._version))

    def handle(self, message: Message) -> bool:
        """Do what the coordinator says; what takes others is left to the main thread."""
        if isinstance(message, JoinRing | SumUp | Apply | SaveDense) and message.generation != self._generation:
            return True  # of work that was thrown away
        if isinstance(message, JoinRing | SumUp):
            self._calls.put(message)
        elif isinstance(message, Apply):
            self._apply(message)
        elif isinstance(message, SaveDense):
            self._tell(self._save(message))
        else:
            return False
        return True

    def _apply(self, message: Apply) -> None:
        """Update the dense parameters with the sum: the step is committed."""
        with self._lock:
            is_alone = self._group is None and self._version == message.step  # what it computed is the sum
            if self._reduced != message.step and not is_alone:
                return
            self._reduced = None
            self._steps += 1
            self._update(message)
            self._gradients.zero_()
            self._version = message.step + 1
        with self._applied:
            self._applied.notify_all()

    def _update(self, message: Apply) -> None:
        """Step the parameters where they lie."""
        optimizer, number, factor = self._optimizer, self._steps, message.factor
        how: dict[str, Any] = {"scale": message.scale, "clip_value": self._clip.clip_value}
        if self._values.device.type != "cpu":
            numbers = optimizer.numbers(step_number=number, factor=factor)
            optimizer.step_on_device(self._values, self._gradients, self._state, numbers=numbers, **how)
            return
        state = {name: vector.numpy() for name, vector in self._state.items()}
        optimizer.step(self._values.numpy(), self._gradients.numpy(), state, step_number=number, factor=factor, **how)

    def _save(self, message: SaveDense) -> Saved | SaveFailed:
        """Write the dense parameters and their optimizer state, and return what became of it."""
        generation, number = message.generation, message.number
        if self._saved is not None and (self._saved.generation, self._saved.number) == (generation, number):
            return self._saved  # it was told twice
        try:
            if message.step != self._version:  # it was not told of a commit
                raise TrainingError(
                    f"the checkpoint is of step {message.step}, and {self._name} holds {self._version}",
                    hint="the next one will be whole",
                )
            folder, values = Path(message.folder), self._values.cpu().numpy()
            save_dense(folder, self._stage, self._part.start, values, from_device(self._state))
            files = checksums_in(folder, only=f"dense-{self._stage}.safetensors")
        except (DovetailError, OSError) as error:
            hint = error.hint if isinstance(error, DovetailError) else "check the disk"
            return SaveFailed(name=self._name, generation=generation, number=number, error=str(error), hint=hint)
        self._saved = Saved(name=self._name, generation=generation, number=number, files=files)
        return self._saved

    # -- membership, in the main thread --------------------------------------------------------------------------------

    def catch_up(self, is_current: Callable[[int], bool]) -> None:
        """Take a place in a new ring, or add up, where there is a call for it of a generation that `is_current`."""
        while not self._calls.empty():
            message = self._calls.get()
            generation = message.generation
            if not is_current(generation):
                continue
            try:
                if isinstance(message, SumUp):
                    self._sum(message, lambda: is_current(generation))  # noqa: B023 - used at once
                elif not message.meeting and len(message.members) > 1:
                    self.close()
                    self._rendezvous = RendezvousServer(self._process, self._own_address(), message.members)
                    meeting = self._rendezvous.address
                    self._tell(RingMeets(name=self._name, generation=generation, meeting=meeting))
                else:
                    self._join(message, lambda: is_current(generation))  # noqa: B023 - used at once
                    self._joined = generation
                    self._tell(InRing(name=self._name, generation=generation, version=self._version))
            except Abandoned:
                continue
            except RuntimeError as problem:
                self._broken(generation, message.step, problem)

    def _broken(self, generation: int, step: int, problem: RuntimeError) -> None:
        text = str(problem).splitlines()[0][:200] if str(problem) else type(problem).__name__
        self._tell(RingBroken(name=self._name, generation=generation, step=step, error=text))

    def _join(self, message: JoinRing, wanted: Wanted) -> None:
        """Take a place in a ring, and the dense parameters of whoever has them."""
        rank, size = message.members.index(self._name), len(message.members)
        if self._group is not None:
            self._group.leave()
        self._group = self._store = None
        if self._rendezvous is not None and self._rendezvous.address != message.meeting:
            self.close()
        if (self._era, self._version) != (message.era, message.step):
            self._version = -1  # until it is whole
        if message.source == "":
            self._load(Path(message.folder))
        if size > 1:
            group = self._group = self._connect(message, rank, wanted)
            if message.source:
                self._spread(group, message.members.index(message.source), wanted)
        if self._version != message.step:
            raise RuntimeError(f"the dense parameters hold {self._version} steps instead of {message.step}")
        self._era = message.era
        self._reduced = None
        self._gradients.zero_()

    def _connect(self, message: JoinRing, rank: int, wanted: Wanted) -> Collective:
        """Find the other members and connect to them; what listens is on the address by which they reach this one."""
        rendezvous = Rendezvous(self._process, message.members[0], message.meeting, wanted, wait_s=RENDEZVOUS_S)
        try:
            # Every member is there before it begins: Gloo would wait for lost ones too, and not be told.
            here = [f"here-{each}" for each in range(len(message.members))]
            rendezvous.put(here[rank], b"")
            rendezvous.wait_for_all(here)
            options = dist.ProcessGroupGloo._Options()
            options._timeout = timedelta(seconds=RENDEZVOUS_S)
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._own_address())]
            self._store = RendezvousStore(rendezvous)
            group = dist.ProcessGroupGloo(self._store, rank, len(here), options)
            rendezvous.leave()
        except BaseException:
            rendezvous.close()
            raise
        return Collective(group, self._gradients, ring_coder(self._process.blueprint, self._part.start, self._name))

    def _load(self, folder: Path) -> None:
        """Take the dense parameters of a checkpoint."""
        manifest = RunManifest.read(folder)
        values, state = load_dense(folder, manifest)
        self._values.copy_(torch.from_numpy(values[self._part]))
        mine = {name: vector[self._part].copy() for name, vector in state.items()}
        self._state = to_device(mine or self._optimizer.first_state(len(self._values)), self._values.device)
        self._steps = manifest.dense_steps
        self._version = manifest.step

    def _spread(self, group: Collective, root: int, wanted: Wanted) -> None:
        """Have everyone hold what one member holds."""
        names = self._optimizer.state_vectors()
        counts = torch.tensor([self._steps, self._version], dtype=torch.int64)
        mine = [counts, self._values, *(self._state[name] for name in names)]
        counts, values, *state = group.spread(mine, root, wanted)
        device = self._values.device
        self._state = {name: vector.to(device) for name, vector in zip(names, state, strict=True)}
        self._values.copy_(values)
        self._steps, self._version = int(counts[0]), int(counts[1])

    def _own_address(self) -> str:
        host = self._process.blueprint.coordinator.address.removeprefix("tcp://").rpartition(":")[0]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])

    # -- one step, in the main thread ----------------------------------------------------------------------------------

    def _watch(self, parameters: Sequence[nn.Parameter]) -> None:
        """Have buckets summed as soon as their gradients are there; parameters lie in the vector in this order."""
        bounds: list[list[int]] = []
        end = 0
        self._expected: list[int] = []
        """Of each bucket: how many parameters have their gradients in it."""
        for parameter in parameters:
            begin, end = end, end + parameter.numel()
            if not bounds or end - bounds[-1][0] > BUCKET_BYTES // 4:
                bounds.append([begin, end])
                self._expected.append(0)
            bounds[-1][1] = end
            self._expected[-1] += 1
            parameter.register_post_accumulate_grad_hook(self._on_gradient(len(bounds) - 1))  # type: ignore[no-untyped-call]
        self._buckets = [slice(begin, stop) for begin, stop in bounds]
        self._missing = list(self._expected)
        self._overlaps = False

    def _on_gradient(self, bucket: int) -> Callable[[nn.Parameter], None]:
        def ready(_: nn.Parameter) -> None:
            if self._overlaps and self._group is not None:
                self._missing[bucket] -= 1
                self._begin_ready(self._group)

        return ready

    def begin_task(self) -> None:
        """Count gradients from zero."""
        self._gradients.zero_()

    def begin_last(self, task: Task | None = None) -> None:
        """Have gradients summed while the backward pass that follows goes on: they are final."""
        self._missing = list(self._expected)
        self._overlaps = self._group is not None

    def _begin_ready(self, group: Collective) -> None:
        """Begin to sum buckets in the order from last to first, the same on all members."""
        while group.num_begun < len(self._buckets):
            bucket = len(self._buckets) - 1 - group.num_begun
            if self._missing[bucket]:
                return
            group.begin_sum(self._gradients, self._buckets[bucket])

    def finish(self, task: Task, wanted: Wanted) -> Span | None:
        """Sum the dense gradients with the others and wait until the step is committed; None where nobody wants it."""
        assign, begin_s = task.assign, now_s()
        try:
            self._sum(assign, wanted)
            with self._applied:
                while self._version <= assign.step:
                    if not wanted():
                        return None
                    self._applied.wait(APPLIED_LOOK_S)
        except Abandoned:
            return None
        except RuntimeError as problem:
            if wanted():
                self._broken(assign.generation, assign.step, problem)
            return None
        return Span("reduce", begin_s, now_s(), assign.step)

    def _sum(self, message: SumUp | Assign, wanted: Wanted) -> None:
        """Sum the gradients of all members, and say so; what the backward pass has begun is waited for."""
        if self._group is not None:
            self._overlaps = False
            self._missing = [0] * len(self._buckets)
            self._begin_ready(self._group)
            self._group.finish_sums(self._gradients, wanted)
        square = self._norm_square() if self._clip.clip_norm is not None else 0.0
        with self._lock:
            self._reduced = message.step
        self._tell(Reduced(name=self._name, generation=message.generation, step=message.step, square=square))

    def _norm_square(self) -> float:
        if self._gradients.device.type == "cpu":
            return float(sum_of_squares(self._gradients.numpy()))
        return float(self._gradients.double().square_().sum())
