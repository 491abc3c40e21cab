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


class RingSync(DenseSync):
    """Takes part in one ring after the other, as the coordinator says; the servers know nothing of it."""

    def __init__(
        self, process: Process, model: ServedModel, tell: Tell, *, part: slice | None = None, stage: int = 0
    ) -> None:
        """Watch the model's gradients; those of a stage are a `part` of the whole model's."""
        self._name, self._tell, self._gradients = process.name, tell, model.gradients
        whole = slice(0, process.blueprint.dense_size)
        self._ring = Ring(process, model.values, model.gradients, part=part or whole, number=stage)
        self._ring.watch(model.dense)
        self._generation = 0
        self._joined = -1
        """The generation of the ring that this worker has a place in; the main thread writes it."""
        self._saved: Saved | None = None
        self._calls: queue.SimpleQueue[JoinRing | SumUp] = queue.SimpleQueue()

    def has_step(self, generation: int, step: int) -> bool:
        """Say whether this worker is in the ring of a generation, and holds so many steps: else nobody counts on it."""
        return self._joined == generation and self._ring.version >= step

    def reset(self, generation: int) -> None:
        """Throw away the step under way, and say which parameters this worker holds."""
        self._generation = generation
        self._ring.forget_sum()
        self._tell(Holds(name=self._name, generation=generation, era=self._ring.era, version=self._ring.version))

    def handle(self, message: Message) -> bool:
        """Do what the coordinator says, in the control thread; what takes others is left to the main thread."""
        if isinstance(message, JoinRing | SumUp | Apply | SaveDense) and message.generation != self._generation:
            return True  # of work that was thrown away
        if isinstance(message, JoinRing | SumUp):
            self._calls.put(message)
        elif isinstance(message, Apply):
            self._ring.apply(message)
        elif isinstance(message, SaveDense):
            self._tell(self._save(message))
        else:
            return False
        return True

    def _save(self, message: SaveDense) -> Saved | SaveFailed:
        """Write the dense parameters, and return what became of it."""
        generation, number = message.generation, message.number
        if self._saved is not None and (self._saved.generation, self._saved.number) == (generation, number):
            return self._saved  # it was told twice
        try:
            if message.step != self._ring.version:  # it was not told of a commit
                raise TrainingError(
                    f"the checkpoint is of step {message.step}, and {self._name} holds {self._ring.version}",
                    hint="the next one will be whole",
                )
            files = self._ring.save(Path(message.folder))
        except (DovetailError, OSError) as error:
            hint = error.hint if isinstance(error, DovetailError) else "check the disk"
            return SaveFailed(name=self._name, generation=generation, number=number, error=str(error), hint=hint)
        self._saved = Saved(name=self._name, generation=generation, number=number, files=files)
        return self._saved

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
                    meeting = self._ring.meet(message.members)
                    self._tell(RingMeets(name=self._name, generation=generation, meeting=meeting))
                else:
                    self._ring.join(message, lambda: is_current(generation))  # noqa: B023 - used at once
                    self._joined = generation
                    self._tell(InRing(name=self._name, generation=generation, version=self._ring.version))
            except Abandoned:
                continue
            except RuntimeError as problem:
                self._broken(generation, message.step, problem)

    def _sum(self, message: SumUp | Assign, wanted: Callable[[], bool]) -> None:
        """Sum the dense gradients of a step with the others, and say so."""
        square = self._ring.reduce(message.step, wanted)
        self._tell(Reduced(name=self._name, generation=message.generation, step=message.step, square=square))

    def close(self) -> None:
        """Close the rendezvous, where this worker keeps one."""
        self._ring.close()

    def begin_task(self) -> None:
        """Count gradients from zero."""
        self._gradients.zero_()

    def begin_last(self, task: Task | None = None) -> None:
        """Have gradients summed while the backward pass that follows goes on."""
        self._ring.overlap()

    def finish(self, task: Task, wanted: Callable[[], bool]) -> Span | None:
        """Sum the dense gradients with the others and wait until the step is committed; None where nobody wants it."""
        assign, begin_s = task.assign, now_s()
        try:
            self._sum(assign, wanted)
            self._ring.wait_applied(assign.step, wanted)
        except Abandoned:
            return None
        except RuntimeError as problem:
            if wanted():
                self._broken(assign.generation, assign.step, problem)
            return None
        return Span("reduce", begin_s, now_s(), assign.step)

    def _broken(self, generation: int, step: int, problem: RuntimeError) -> None:
        """Tell the coordinator that the ring does not hold."""
        text = str(problem).splitlines()[0][:200] if str(problem) else type(problem).__name__
        self._tell(RingBroken(name=self._name, generation=generation, step=step, error=text))


class Ring:
    """One worker's place in the ring, its copy of the dense parameters and of their optimizer state."""

    def __init__(
        self, process: Process, values: torch.Tensor, gradients: torch.Tensor, *, part: slice, number: int = 0
    ) -> None:
        """Keep the vectors that the model's parameters and gradients are views of.

        They are `part` of those of the whole model, and the slice of that `number` in a checkpoint.
        """
        self._process, self._values, self._gradients = process, values, gradients
        self._part, self._number = part, number
        self._optimizer = optimizer_of(process.blueprint, part)
        self._state = to_device(self._optimizer.first_state(len(values)), values.device)
        self._clip = process.blueprint.run.optimizer
        self._steps = 0
        self._group: Collective | None = None
        self._rendezvous: RendezvousServer | None = None
        self._store: RendezvousStore | None = None
        self._lock = threading.Lock()
        self._reduced: int | None = None
        self.applied = threading.Condition()
        self.version = -1
        """Steps that the dense parameters hold; -1 before there are any."""
        self.era = -1
        """The generation that took up the checkpoint from which they come."""
        self._buckets: list[slice] = []
        self._bucket_of: dict[int, int] = {}
        self._missing: list[int] = []
        self._overlaps = False

    # -- membership, in the main thread --------------------------------------------------------------------------------

    def meet(self, members: Sequence[str]) -> str:
        """Open the rendezvous of a new ring, and say where it is."""
        self.close()
        self._rendezvous = RendezvousServer(self._process, self._own_address(), members)
        return self._rendezvous.address

    def join(self, message: JoinRing, wanted: Callable[[], bool]) -> None:
        """Take a place in a ring, and the dense parameters of whoever has them."""
        rank, size = message.members.index(self._process.name), len(message.members)
        if self._group is not None:
            self._group.leave()
        self._group = self._store = None
        if self._rendezvous is not None and self._rendezvous.address != message.meeting:
            self.close()
        if (self.era, self.version) != (message.era, message.step):
            self.version = -1  # until it is whole
        if message.source == "":
            self._load(Path(message.folder))
        if size > 1:
            group = self._group = self._connect(message, rank, wanted)
            if message.source:
                self._spread(group, message.members.index(message.source), wanted)
        if self.version != message.step:
            raise RuntimeError(f"the dense parameters hold {self.version} steps instead of {message.step}")
        self.era = message.era
        self._reduced = None
        self._gradients.zero_()

    def forget_sum(self) -> None:
        """Throw away gradients that were summed and not applied: the step is done again."""
        with self._lock:
            self._reduced = None

    def _connect(self, message: JoinRing, rank: int, wanted: Callable[[], bool]) -> Collective:
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
        coder = ring_coder(self._process.blueprint, self._part.start, self._process.name)
        return Collective(group, self._gradients, coder)

    def close(self) -> None:
        """Close the rendezvous of an earlier ring."""
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    def _load(self, folder: Path) -> None:
        """Take the dense parameters of a checkpoint."""
        manifest = RunManifest.read(folder)
        values, state = load_dense(folder, manifest)
        self._values.copy_(torch.from_numpy(values[self._part]))
        mine = {name: vector[self._part].copy() for name, vector in state.items()}
        self._state = to_device(mine or self._optimizer.first_state(len(self._values)), self._values.device)
        self._steps = manifest.dense_steps
        self.version = manifest.step

    def _spread(self, group: Collective, root: int, wanted: Callable[[], bool]) -> None:
        """Have everyone hold what one member holds."""
        names = self._optimizer.state_vectors()
        counts = torch.tensor([self._steps, self.version], dtype=torch.int64)
        mine = [counts, self._values, *(self._state[name] for name in names)]
        counts, values, *state = group.spread(mine, root, wanted)
        device = self._values.device
        self._state = {name: vector.to(device) for name, vector in zip(names, state, strict=True)}
        self._values.copy_(values)
        self._steps, self.version = int(counts[0]), int(counts[1])

    def _own_address(self) -> str:
        """Return the address by which other members reach this one."""
        host = self._process.blueprint.coordinator.address.removeprefix("tcp://").rpartition(":")[0]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])

    # -- one step, in the main thread ----------------------------------------------------------------------------------

    def watch(self, parameters: list[nn.Parameter]) -> None:
        """Have buckets summed as soon as their gradients are there; parameters lie in the vector in this order."""
        bounds: list[list[int]] = []
        end = 0
        for position, parameter in enumerate(parameters):
            begin, end = end, end + parameter.numel()
            if not bounds or end - bounds[-1][0] > BUCKET_BYTES // 4:
                bounds.append([begin, end])
                self._missing.append(0)
            bounds[-1][1] = end
            self._bucket_of[position] = len(bounds) - 1
            self._missing[-1] += 1
            parameter.register_post_accumulate_grad_hook(self._on_gradient(position))  # type: ignore[no-untyped-call]
        self._buckets = [slice(begin, stop) for begin, stop in bounds]
        self._expected = list(self._missing)

    def overlap(self) -> None:
        """Say that the backward pass that follows is the last of the step: its gradients are final."""
        self._missing = list(self._expected)
        self._overlaps = self._group is not None

    def _on_gradient(self, position: int) -> Callable[[nn.Parameter], None]:
        """Return what is called when a parameter has its gradient."""

        def ready(_: nn.Parameter) -> None:
            if self._overlaps and self._group is not None:
                self._missing[self._bucket_of[position]] -= 1
                self._begin_ready(self._group)

        return ready

    def _begin_ready(self, group: Collective) -> None:
        """Begin to sum buckets in the order from last to first, the same on all members."""
        while group.num_begun < len(self._buckets):
            bucket = len(self._buckets) - 1 - group.num_begun
            if self._missing[bucket]:
                return
            group.begin_sum(self._gradients, self._buckets[bucket])

    def reduce(self, step: int, wanted: Callable[[], bool]) -> float:
        """Sum the gradients of all members; what the backward pass has begun is waited for.

        Return the squared norm of the sum, where gradients are clipped by it.
        """
        if self._group is not None:
            self._overlaps = False
            self._missing = [0] * len(self._buckets)
            self._begin_ready(self._group)
            self._group.finish_sums(self._gradients, wanted)
        square = self._norm_square() if self._clip.clip_norm is not None else 0.0
        with self._lock:
            self._reduced = step
        return square

    def _norm_square(self) -> float:
        """Return the sum of squares of the gradients."""
        if self._gradients.device.type == "cpu":
            return float(sum_of_squares(self._gradients.numpy()))
        return float(self._gradients.double().square_().sum())

    def wait_applied(self, step: int, wanted: Callable[[], bool]) -> None:
        """Wait until a step is committed and its update done."""
        with self.applied:
            while self.version <= step:
                if not wanted():
                    raise Abandoned
                self.applied.wait(APPLIED_LOOK_S)

    # -- the coordinator's word, in the control thread -----------------------------------------------------------------

    def apply(self, message: Apply) -> None:
        """Update the dense parameters with the sum: the step is committed."""
        with self._lock:
            is_alone = self._group is None and self.version == message.step  # what it computed is the sum
            if self._reduced != message.step and not is_alone:
                return
            self._reduced = None
            self._steps += 1
            self._update(message)
            self._gradients.zero_()
            self.version = message.step + 1
        with self.applied:
            self.applied.notify_all()

    def _update(self, message: Apply) -> None:
        """Step the parameters where they lie."""
        numbers: dict[str, Any] = {
            "step_number": self._steps,
            "scale": message.scale,
            "factor": message.factor,
            "clip_value": self._clip.clip_value,
        }
        if self._values.device.type != "cpu":
            self._optimizer.step_on_device(self._values, self._gradients, self._state, **numbers)
            return
        state = {name: vector.numpy() for name, vector in self._state.items()}
        self._optimizer.step(self._values.numpy(), self._gradients.numpy(), state, **numbers)

    def save(self, folder: Path) -> dict[str, str]:
        """Write the dense parameters and their optimizer state; return the file and its checksum."""
        save_dense(folder, self._number, self._part.start, self._values.cpu().numpy(), from_device(self._state))
        return checksums_in(folder, only=f"dense-{self._number}.safetensors")
