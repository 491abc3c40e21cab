"""CTR-DNN in one process of plain PyTorch.

    python benchmarks/rivals/make_data.py out/rivals.npz
    python benchmarks/rivals/plain_pytorch.py --data out/rivals.npz --threads 2

The last line is JSON with samples_per_s.
"""

from __future__ import annotations

import argparse

import torch
from ctr_dnn import CtrDnn, RowsAndLayers, load_batches, train_step
from rates import add_options, print_result, windows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = CtrDnn()
    optimizer = RowsAndLayers(model, arguments.optimizer)
    batches = load_batches(arguments.data, arguments.batch)

    loss = torch.zeros(())

    def run_steps(steps: int) -> None:
        nonlocal loss
        for _ in range(steps):
            loss = train_step(model, optimizer, next(batches))

    found = list(windows(run_steps, arguments))
    details = {name: getattr(arguments, name) for name in ("batch", "threads", "optimizer")}
    print_result("plain-pytorch", found, loss=float(loss), torch=torch.__version__, **details)


if __name__ == "__main__":
    main()
