"""CTR-DNN under PyTorch's DistributedDataParallel between hosts with links of their own, one communication hook a run.

Started by `benchmarks/slow_links.py`, one process a host. The table's gradients are dense, as hooks want them. The
first rank prints JSON: seconds of all steps but the first ones, and the AUC on samples that were not trained on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dovetail.data import Batch, Clicks
from dovetail.models.metrics import make_metric
from testbed import enter

WARM_UP = 5


class CtrDnn(nn.Module):
    """One table for all slots, three layers, one score."""

    def __init__(self, source: Clicks, num_rows: int, width: int, hidden: list[int]) -> None:
        """Make table and layers."""
        super().__init__()
        self._num_slots = source.schema.num_slots
        self.table = nn.EmbeddingBag(num_rows, width, mode="sum", include_last_offset=True)
        nn.init.uniform_(self.table.weight, -0.1, 0.1)
        sizes, layers = [self._num_slots * width + source.schema.num_dense, *hidden], []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, batch: Batch) -> Tensor:
        """Return a score a sample."""
        rows = self.table(batch.ids, batch.offsets).view(batch.num_samples, -1)
        return self.layers(torch.cat([rows, batch.dense], dim=1)).squeeze(1)


def hook_of(name: str) -> tuple[Any, Any]:
    """Return the state and the hook of a side."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    from dovetail.codecs import DDPState, ddp_hook

    if name == "fp16":
        return None, default_hooks.fp16_compress_hook
    if name == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=10)
        return state, powerSGD_hook.powerSGD_hook
    return (DDPState(bits=int(name)), ddp_hook) if name != "fp32" else (None, None)


def main() -> None:
    """Be one process."""
    parser = argparse.ArgumentParser()
    for name in ("namespace", "meet", "hook", "data", "hidden"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("rank", "of", "batch", "steps", "rows", "width", "seed", "evaluate"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    enter(arguments.namespace)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    source = Clicks(**json.loads(arguments.data))
    model = CtrDnn(source, arguments.rows, arguments.width, json.loads(arguments.hidden))
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{arguments.meet}", rank=arguments.rank, world_size=arguments.of
    )
    # PowerSGD sums from callbacks, which Gloo gets in another order on every rank where there are several buckets.
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1000 if arguments.hook == "powersgd" else None)
    state, hook = hook_of(arguments.hook)
    if hook is not None:
        wrapped.register_comm_hook(state, hook)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    share = arguments.batch // arguments.of
    begun_s = time.perf_counter()
    for step in range(arguments.steps):
        if step == WARM_UP:
            begun_s = time.perf_counter()
        first = step * arguments.batch + arguments.rank * share
        batch = source.read(first, first + share)
        loss = nn.functional.binary_cross_entropy_with_logits(wrapped(batch), batch.labels.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds = time.perf_counter() - begun_s
    distributed.barrier()
    distributed.destroy_process_group()
    if arguments.rank == 0:
        auc = make_metric("auc")
        with torch.no_grad():
            trained = arguments.steps * arguments.batch
            for first in range(trained, trained + arguments.evaluate, 4096):
                batch = source.read(first, first + 4096)
                auc.update(torch.sigmoid(model(batch)), batch.labels)
        print(json.dumps({"step_s": seconds / (arguments.steps - WARM_UP), "auc": auc.value()}), flush=True)


if __name__ == "__main__":
    main()
