"""CTR-DNN under PyTorch's DistributedDataParallel over Gloo, each process with an equal share of the batch.

    python benchmarks/rivals/make_data.py out/rivals.npz
    python benchmarks/rivals/ddp_pytorch.py --data out/rivals.npz --processes 2 --threads 1
    python benchmarks/rivals/ddp_pytorch.py --data out/rivals.npz --embedding dense
    python benchmarks/rivals/ddp_pytorch.py --data out/rivals.npz --batch 16384 --seconds 60 --quota 0.8,0.4,0.2,0.1

`--quota` gives each process so many cores (as root, see `dovetail.cgroups`), from when it has started up; `--change
30:0.1,0.4,0.2,0.8` gives others 30 seconds into the measured time. Sparse gradients of the table are the default: a
dense one has 166 MB to sum in every step. The last line is JSON with samples_per_s.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from rates import add_options, print_result, windows

from dovetail.cgroups import CpuQuota

READY, MEASURING = "ready", "measuring"


def main() -> None:
    """Start the processes, or be one of them."""
    arguments = parse()
    if arguments.rank is not None:
        train(arguments)
        return
    num_processes = len(arguments.quota or []) or arguments.processes
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        quotas = [stack.enter_context(CpuQuota(f"rank{rank}", cores)) for rank, cores in enumerate(arguments.quota)]
        ranks = [stack.enter_context(started(rank, num_processes, Path(folder))) for rank in range(num_processes)]
        for rank in ranks:
            expect(rank, READY)
        for rank, quota in zip(ranks, quotas, strict=False):
            quota.add(rank.pid)
        for rank in ranks:
            tell_to_go_on(rank)
        expect(ranks[0], MEASURING)
        timer = change_later(quotas, arguments.change)
        print(ranks[0].stdout.read().strip())
        timer.cancel()
        if any(rank.wait(timeout=60) for rank in ranks):
            sys.exit("error: a process failed")


def parse() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--embedding", choices=("sparse", "dense"), default="sparse")
    parser.add_argument("--quota", type=numbers, default=[], help="cores of each process, e.g. 0.8,0.4,0.2,0.1")
    parser.add_argument("--change", type=change, help="SECONDS:CORES, the quotas from then on")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meet", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def numbers(text: str) -> list[float]:
    """Return the numbers in `0.8,0.4`."""
    return [float(word) for word in text.split(",")]


def change(text: str) -> tuple[float, list[float]]:
    """Return the seconds and numbers in `30:0.8,0.4`."""
    after, cores = text.split(":")
    return float(after), numbers(cores)


@contextlib.contextmanager
def started(rank: int, num_processes: int, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start one process with this one's command line; end it by its id."""
    own = ["--rank", str(rank), "--of", str(num_processes), "--meet", str(folder / "store")]
    command = [sys.executable, __file__, *sys.argv[1:], *own]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def expect(process: subprocess.Popen[str], word: str) -> None:
    """Wait for a line from a process."""
    if process.stdout.readline().strip() != word:
        sys.exit(f"error: a process ended before it was {word}")


def tell_to_go_on(process: subprocess.Popen[str]) -> None:
    """Send a process the line it waits for."""
    process.stdin.write("\n")
    process.stdin.flush()


def change_later(quotas: list[CpuQuota], wanted: tuple[float, list[float]] | None) -> threading.Timer:
    """Change the quotas some time from now."""
    after, all_cores = wanted or (0.0, [])

    def work() -> None:
        for quota, cores in zip(quotas, all_cores, strict=False):
            quota.change(cores)

    timer = threading.Timer(after, work)
    timer.start()
    return timer


def train(arguments: argparse.Namespace) -> None:
    """Be one process: import, load, wait, then train as long as the first one says."""
    import torch
    from ctr_dnn import CtrDnn, RowsAndLayers, load_batches, train_step
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = CtrDnn(sparse=arguments.embedding == "sparse")
    optimizer = RowsAndLayers(model, arguments.optimizer)
    batches = load_batches(arguments.data, arguments.batch, part=arguments.rank, num_parts=arguments.of)
    print(READY, flush=True)
    sys.stdin.readline()
    distributed.init_process_group(
        "gloo", init_method=f"file://{arguments.meet}", rank=arguments.rank, world_size=arguments.of
    )
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)

    loss = torch.zeros(())

    def run_steps(steps: int) -> None:
        nonlocal loss
        for _ in range(steps):
            loss = train_step(wrapped, optimizer, next(batches))

    order = torch.zeros(1, dtype=torch.int64)

    def lead(steps: int) -> None:
        distributed.broadcast(order.fill_(steps), 0)
        run_steps(steps)

    if arguments.rank:
        distributed.broadcast(order, 0)
        while steps := int(order):
            run_steps(steps)
            distributed.broadcast(order, 0)
    else:
        found = []
        for window in windows(lead, arguments, root=os.getppid()):
            if not found:
                print(MEASURING, flush=True)
            found.append(window)
        distributed.broadcast(order.fill_(0), 0)
        details = {name: getattr(arguments, name) for name in ("batch", "threads", "optimizer", "embedding", "quota")}
        print_result("ddp-pytorch", found, processes=arguments.of, loss=float(loss), torch=torch.__version__, **details)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
