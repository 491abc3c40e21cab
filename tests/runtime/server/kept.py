"""A shard with its redo log, without a process around them."""

import msgspec
import numpy as np

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.messages import Commit
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.server.gradients import TaskPart
from dovetail.runtime.server.norm_sums import NormSums
from dovetail.runtime.server.redo.log import RedoLog
from dovetail.runtime.server.redo.recover import come_back
from dovetail.runtime.server.redo.ring import put_back
from dovetail.runtime.server.shard import Shard
from dovetail.spec.run_sections import RunCompression, RunOptimizer
from tests.runtime.runs import NUM_ROWS, make_run

ERA, GENERATION, BATCH = 3, 5, 200


class Kept:
    """A shard with its log, in a run's folder."""

    def __init__(self, folder, mode="sync", optimizer="adagrad", *, has_norms=False, bits=None, **faults):
        run = make_run(mode=mode, optimizer=RunOptimizer(name=optimizer, learning_rate=0.05), **faults)
        if bits is not None:
            run = msgspec.structs.replace(run, compression=RunCompression(bits=bits))
        self.folder, self.blueprint = folder, prepare(run, folder)
        self.step, self.draw = 0, np.random.default_rng(7)
        self.made, self.has_norms = [], has_norms
        self.start()
        self.shard.load(newest := checkpoints.newest(folder))
        self.log.begin(ERA, newest)

    def start(self):
        """Begin a process: what the last one had in memory is gone."""
        for log, shard in self.made:
            log.close()
            shard.close()
        rows = self.folder / f"rows-{len(self.made)}"
        self.shard = Shard(self.blueprint, 0, rows)
        if self.has_norms:
            self.shard.norms = NormSums()
        self.log = RedoLog(self.blueprint, 0, self.folder / "redo" / "server-0", self.shard)
        self.made = [(self.log, self.shard)]

    def gradients(self):
        keys = self.draw.choice(NUM_ROWS, size=30, replace=False)
        spec = self.blueprint.tables[0]
        dense = self.draw.normal(size=len(self.shard.values)).astype(np.float32)
        return [(0, keys, self.draw.normal(size=(30, spec.width)).astype(np.float32))], dense

    def push(self, tasks=3):
        """Take in a whole step."""
        for task in range(tasks):
            rows, dense = self.gradients()
            positions = BATCH // tasks + (BATCH % tasks if task == 0 else 0)
            assert self.shard.push(TaskPart(self.step, task, "w", rows=rows, dense=dense))
            self.log.step_grew(generation=GENERATION, positions=positions)

    def commit(self, generation=GENERATION):
        message = Commit(generation=generation, step=self.step, scale=1 / 7, dense_scale=1 / 9, factor=0.5)
        self.log.commit(message)
        self.shard.commit(scale=message.scale, dense_scale=message.dense_scale, factor=message.factor)
        self.step += 1

    def apply(self, task):
        rows, dense = self.gradients()
        halves = [(0, rows[0][1][:20], rows[0][2][:20]), (0, rows[0][1][10:], rows[0][2][10:])]
        how = {"scale": 1 / 7, "factor": 0.5}
        self.shard.apply(TaskPart(0, task, "w", 0, halves[:1], last=False), **how)
        self.shard.apply(TaskPart(0, task, "w", 1, halves[1:], dense), before_apply=self.log.before_apply, **how)

    def save(self, next_task=0, *, number=-1, publish=True):
        """Write a checkpoint, as the servers and the coordinator do."""
        step = self.shard.version
        partial = checkpoints.begin(self.folder, step)
        self.shard.forget_tasks(below=next_task)
        for future in self.shard.save(partial, number):
            future.result()
        self.log.at_checkpoint(next_task)
        if publish:
            before = checkpoints.RunManifest.read(checkpoints.newest(self.folder))
            files = checkpoints.checksums_in(partial, only="**/*")
            manifest = checkpoints.RunManifest(
                step=step, position=BATCH * step, dense_steps=step, num_servers=1, samples=self.blueprint.samples,
                files=files, fingerprint=before.fingerprint,
            )  # fmt: skip
            checkpoints.publish(partial, manifest)

    def state(self):
        """Return all that the shard holds, as bytes."""
        self.shard.settle()
        table = self.shard.tables[0]
        keys = np.sort(table.keys())
        dense = [
            self.shard.values.tobytes(),
            self.shard.returned.waiting.tobytes(),
            *(self.shard._state[name].tobytes() for name in sorted(self.shard._state)),
        ]
        return self.shard.version, self.shard.dense_steps, keys.tobytes(), table.rows(keys).tobytes(), dense

    def die_and_come_back(self):
        """Return what the next process of this server is."""
        self.start()
        return come_back(self.log, self.shard, self.folder)

    def end(self):
        """End the process; complete its files, as the next one does."""
        self.start()
        put_back(self.log.folder, self.log.rings)

    @property
    def files(self):
        return sorted((self.folder / "redo" / "server-0").glob("*.redo"))
