"""Steps of a run in virtual time: workers whose true speeds the dispatcher does not know, with noise on every task."""

import heapq
import random
from dataclasses import dataclass, field

from dovetail.runtime.dispatch import WorkerSpeed, grant, plan_step


@dataclass
class Machine:
    """A worker as it really is, and what the dispatcher has learnt about it."""

    name: str
    samples_per_s: float
    fixed_s: float = 0.02
    piece_fixed_s: float = 0.002
    speed: WorkerSpeed = field(default_factory=WorkerSpeed)
    guess: float | None = None

    def share(self):
        return self.speed.share(self.name, first_guess=self.guess)


@dataclass
class Step:
    """How one step went."""

    seconds: float
    idle: float
    samples: int
    tasks: int
    main: dict[str, int]


class Cluster:
    """Machines that run steps of one batch each; `stalls` says how many times longer a machine's next task takes."""

    def __init__(self, machines, *, batch=16384, noise=0.1, tail=None, seed=0):
        self.machines = {machine.name: machine for machine in machines}
        self.batch, self.noise, self.tail = batch, noise, tail
        self.random = random.Random(seed)
        self.stalls = {}

    def step(self, *, leaver=None):
        """Run one step; `leaver` is gone in the middle of its main task, which then nobody has done."""
        shares = {name: machine.share() for name, machine in self.machines.items()}
        plan = plan_step(self.batch, list(shares.values()), tail=self.tail)
        now_s, running, idle, busy_s = 0.0, [], set(self.machines), dict.fromkeys(self.machines, 0.0)
        expected_end_s, done, tasks = {}, 0, 0
        remaining = plan.tail_samples

        def start(name, samples, *, piece):
            nonlocal tasks
            machine, share = self.machines[name], shares[name]
            compute_s = samples / machine.samples_per_s * (1 + self.random.uniform(-self.noise, self.noise))
            compute_s *= 0.5 if name == leaver else self.stalls.pop(name, 1.0)
            fixed_s = machine.piece_fixed_s if piece else machine.fixed_s
            heapq.heappush(running, (now_s + compute_s + fixed_s, name, samples, compute_s, fixed_s, piece))
            believed_s = share.piece_fixed_s if piece else share.fixed_s
            expected_end_s[name] = now_s + (believed_s + samples / share.samples_per_s if share.samples_per_s else 0.0)
            busy_s[name] += compute_s + fixed_s
            idle.discard(name)
            tasks += 1

        def hand_out():
            """Offer the tail to all that are free, the fastest first, until nobody takes more."""
            nonlocal remaining
            for name in sorted(idle, key=lambda name: -(shares[name].samples_per_s or 0)):
                others = [(shares[other], max(expected_end_s[other] - now_s, 0.01 * now_s)) for _, other, *_ in running]
                if samples := grant(shares[name], remaining, others, step_s=plan.step_s):
                    remaining -= samples
                    start(name, samples, piece=True)
                    return True
            return False

        for name, samples in plan.main.items():
            if samples:
                start(name, samples, piece=False)
        while running or remaining:
            while remaining and hand_out():
                pass
            now_s, name, samples, compute_s, fixed_s, piece = heapq.heappop(running)
            if name == leaver:
                remaining += samples
                del self.machines[name], busy_s[name]
                continue
            done += samples
            self.machines[name].speed.add(samples, compute_s, fixed_s, piece=piece)
            shares[name] = self.machines[name].share()
            idle.add(name)
        idle_part = 1 - sum(busy_s.values()) / (now_s * len(busy_s))
        return Step(seconds=now_s, idle=idle_part, samples=done, tasks=tasks, main=plan.main)

    def best_s(self):
        """Return how long a step takes without noise, waits and pieces, by trying times."""
        low_s, high_s = 0.0, 1e6
        for _ in range(100):
            t = (low_s + high_s) / 2
            done = sum(m.samples_per_s * max(0.0, t - m.fixed_s) for m in self.machines.values())
            low_s, high_s = (t, high_s) if done < self.batch else (low_s, t)
        return high_s
