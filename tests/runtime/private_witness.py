"""`python -m tests.runtime.private_witness FILE ...`: the command line, with a line in FILE for every step taken.

A line is the stream of noise and the step, and is on its way to the disk when the step is over.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from dovetail.cli.main import main
from dovetail.runtime.trainer import dense_step

if __name__ == "__main__":
    witness = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    make, take = dense_step.DenseStep.__init__, dense_step.DenseStep.take

    def begin(self: Any, blueprint: Any, *rest: Any, **how: Any) -> None:
        make(self, blueprint, *rest, **how)
        self.stream = blueprint.private.stream

    def counted(self: Any, **how: Any) -> None:
        take(self, **how)
        os.write(witness, f"{self.stream} {self.steps - 1}\n".encode())

    dense_step.DenseStep.__init__ = begin  # type: ignore[method-assign]
    dense_step.DenseStep.take = counted  # type: ignore[method-assign]
    main()
