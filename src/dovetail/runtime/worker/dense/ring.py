"""Dense parameters in a ring: gradients summed by all-reduce while the backward pass goes on, one update everywhere.

A ring belongs to one generation of the run: it is never repaired, a new one is made. The update waits until the
coordinator has committed the step, so that a step counts everywhere or nowhere.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import Tensor, nn

from dovetail.codecs import Codec, codec_of, pack, unpack
from dovetail.data.streams import stream_number
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import RunManifest, checksums_in, load_dense, save_dense
from dovetail.runtime.dense.coding import exact_places
from dovetail.runtime.dense.kernels import sum_of_squares
from dovetail.runtime.dense.optimizer import optimizer_of
from dovetail.runtime.dense.torch_optimizer import from_device, step_on_device, to_device
from dovetail.runtime.messages import Apply, JoinRing
from dovetail.runtime.process import Process
from dovetail.runtime.worker.dense.rendezvous import Rendezvous, RendezvousServer, RendezvousStore
from dovetail.runtime.worker.links.servers import Abandoned


class RingCoder:
    """Turns parts of a member's gradients into payloads, and all members' payloads into their sum."""

    def __init__(self, codec: Codec, blueprint: Blueprint, offset: int, seed: int) -> None:
        """Sum vectors that begin at `offset` of the dense parameters."""
        self._codec, self._entries, self._offset = codec, blueprint.dense, offset
        self._seed = seed

    def payload(self, vector: Tensor, part: slice) -> Tensor:
        """Return the payload of a part of this member's gradients."""
        self._seed += 1 << 32
        values = vector[part].detach().cpu().numpy()
        exact = self._exact(part)
        packed: NDArray[Any] = pack(values, self._codec, seed=self._seed, exact=exact)
        return torch.from_numpy(packed)

    def total(self, payloads: Sequence[Tensor], part: slice) -> Tensor:
        """Return the sum of all members' gradients, in the order of their ranks: every member finds the same bits."""
        exact, shape = self._exact(part), (part.stop - part.start,)
        total = np.zeros(shape, dtype=np.float32)
        for payload in payloads:
            total += unpack(payload.numpy(), shape, exact=exact, where="a member of the ring")
        return torch.from_numpy(total)

    def _exact(self, part: slice) -> NDArray[np.int64]:
        """Return where in a part numbers are that no codec touches."""
        return exact_places(self._entries, slice(self._offset + part.start, self._offset + part.stop))


def ring_coder(blueprint: Blueprint, offset: int, name: str) -> RingCoder | None:
    """Return the coder of a member, or None where gradients travel as they are."""
    bits = blueprint.run.compression.bits
    codec = codec_of(bits) if isinstance(bits, int) else None
    seed = stream_number(blueprint.run.training.seed, f"ring/{name}") >> 1
    return RingCoder(codec, blueprint, offset, seed) if codec is not None else None


torch_dist: Any = torch.distributed
"""PyTorch does not list its groups as public, though it documents them."""
TIMEOUT_S = 300.0
"""Of an operation that nobody gave up: the coordinator notices lost members long before."""
LOOK_S = 0.05
"""How often it is seen whether an operation is still wanted; its end itself wakes who waits for it."""

_put_aside: list[Collective] = []
"""Groups that were left with operations under way."""


class Collective:
    """A group of processes, and the memory that its operations work on."""

    def __init__(self, group: Any, like: Tensor, coder: RingCoder | None = None) -> None:
        """Take a group over; sums are of vectors such as `like`, with a coder in fewer bits."""
        self._group, self._coder = group, coder
        self._arrived: list[list[Tensor]] = []
        """The payloads of all members for each part, where there is a coder."""
        self._memory = torch.empty(like.shape, dtype=like.dtype)  # Gloo sums in host memory
        self._under_way: list[Any] = []
        self._parts: list[slice] = []

    def begin_sum(self, vector: Tensor, part: slice) -> None:
        """Begin to sum a part of the vectors of all members; all begin with the same parts in the same order."""
        self._parts.append(part)
        if self._coder is not None:
            payload = self._coder.payload(vector, part)
            self._arrived.append([torch.empty_like(payload) for _ in range(self._group.size())])
            gathering = torch_dist.distributed_c10d.AllgatherOptions()
            gathering.timeout = timedelta(seconds=TIMEOUT_S)
            self._under_way.append(self._group.allgather([self._arrived[-1]], [payload], gathering))
            return
        options = torch_dist.AllreduceOptions()
        options.timeout = timedelta(seconds=TIMEOUT_S)
        self._memory[part].copy_(vector[part])
        self._under_way.append(self._group.allreduce([self._memory[part]], options))

    @property
    def num_begun(self) -> int:
        """Return how many parts are being summed."""
        return len(self._parts)

    def finish_sums(self, vector: Tensor, wanted: Callable[[], bool]) -> None:
        """Wait for all parts that were begun, and write their sums into the vector."""
        self._finish(wanted)
        for number, part in enumerate(self._parts):
            if self._coder is not None:
                self._memory[part].copy_(self._coder.total(self._arrived[number], part))
            vector[part].copy_(self._memory[part])
        self._parts.clear()
        self._arrived.clear()

    def spread(self, tensors: Sequence[Tensor], root: int, wanted: Callable[[], bool]) -> list[Tensor]:
        """Return what the member at `root` has where the others have `tensors`."""
        options = torch_dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        options.timeout = timedelta(seconds=TIMEOUT_S)
        copies = [tensor.detach().cpu().clone() for tensor in tensors]
        for copy in copies:
            self._under_way.append(self._group.broadcast([copy], options))
            self._finish(wanted)
        return copies

    def _finish(self, wanted: Callable[[], bool]) -> None:
        """Wait for everything under way, as long as it is wanted."""
        while self._under_way:
            work = self._under_way[0]
            with suppress(RuntimeError):  # the time is over; or it failed, which is raised below
                work.wait(timedelta(seconds=LOOK_S))
            if work.is_completed():
                self._under_way.pop(0).wait()
            elif not wanted():
                raise Abandoned

    def leave(self) -> None:
        """Go without the group; what is under way is left to itself."""
        if not all(work.is_completed() for work in self._under_way):
            _put_aside.append(self)
        for other in [each for each in _put_aside if all(work.is_completed() for work in each._under_way)]:
            _put_aside.remove(other)


dist: Any = torch.distributed
"""PyTorch does not list its stores and groups as public, though it documents them."""
BUCKET_BYTES = 1 << 19
"""Gradients that are summed together, as soon as the backward pass has all of them."""
MEETING_S = 20.0
"""Of members who are all there to find each other."""
APPLIED_LOOK_S = 0.05
"""How often a member that waits for the commit looks whether it is still wanted; the commit itself wakes it."""


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
        self._place: RendezvousServer | None = None
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
        """Open the meeting place of a new ring, and say where it is."""
        self.close()
        self._place = RendezvousServer(self._process, self._own_address(), members)
        return self._place.address

    def join(self, message: JoinRing, wanted: Callable[[], bool]) -> None:
        """Take a place in a ring, and the dense parameters of whoever has them."""
        rank, size = message.members.index(self._process.name), len(message.members)
        if self._group is not None:
            self._group.leave()
        self._group = self._store = None
        if self._place is not None and self._place.address != message.meeting:
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
        meeting = Rendezvous(self._process, message.members[0], message.meeting, wanted, wait_s=MEETING_S)
        try:
            # Every member is there before it begins: Gloo would wait for lost ones too, and not be told.
            here = [f"here-{each}" for each in range(len(message.members))]
            meeting.put(here[rank], b"")
            meeting.wait_for_all(here)
            options = dist.ProcessGroupGloo._Options()
            options._timeout = timedelta(seconds=MEETING_S)
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._own_address())]
            self._store = RendezvousStore(meeting)
            group = dist.ProcessGroupGloo(self._store, rank, len(here), options)
            meeting.leave()
        except BaseException:
            meeting.close()
            raise
        coder = ring_coder(self._process.blueprint, self._part.start, self._process.name)
        return Collective(group, self._gradients, coder)

    def close(self) -> None:
        """Close the meeting place of an earlier ring."""
        if self._place is not None:
            self._place.close()
            self._place = None

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
            step_on_device(self._optimizer, self._values, self._gradients, self._state, **numbers)
            return
        state = {name: vector.numpy() for name, vector in self._state.items()}
        self._optimizer.step(self._values.numpy(), self._gradients.numpy(), state, **numbers)

    def save(self, folder: Path) -> dict[str, str]:
        """Write the dense parameters and their optimizer state; return the file and its checksum."""
        save_dense(folder, self._number, self._part.start, self._values.cpu().numpy(), from_device(self._state))
        return checksums_in(folder, only=f"dense-{self._number}.safetensors")
