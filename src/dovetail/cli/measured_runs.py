"""`dovetail plan --measured RUN`: the speed of a plan is what a short run of it reaches on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli.output import say
from dovetail.cli.run_file import is_run, read_run
from dovetail.errors import SpecError

if TYPE_CHECKING:
    from dovetail.spec import Problem, Stage

STEPS = 40
"""That a plan is run for: most of a second each would be long."""


def limited_to_here(problem: Problem, word: str) -> Problem:
    """Return a problem with no more units than this machine has, where plans are run here."""
    if not is_run(word):
        return problem
    from dovetail.cli.catalogue import load
    from dovetail.cli.measured import limited
    from dovetail.runtime.planned.from_plan import Machine
    from dovetail.runtime.planned.units import units_of

    try:
        return limited(problem, Machine.this(), units_of((), problem, load(None)))
    except SpecError as error:
        raise SpecError(
            f"plans of the problem cannot be run here: {error}",
            hint="profile on this machine, or measure elsewhere: --measured package.module:function",
        ) from None


def measure_runs(word: str) -> Callable[[Problem, Sequence[Stage]], float]:
    """Return what trains a run file or model as planned for some steps, and returns the samples/s that it reached."""
    import msgspec

    from dovetail.cli.catalogue import load
    from dovetail.runtime.launch.start import start
    from dovetail.runtime.planned.from_plan import Machine, place, planned_run
    from dovetail.runtime.planned.units import units_of

    run = read_run(word)

    def reached(problem: Problem, stages: Sequence[Stage]) -> float:
        batch = run.training.batch or problem.training.batch
        samples = min(STEPS * batch, run.data.samples or STEPS * batch)
        short = msgspec.structs.replace(
            run,
            data=msgspec.structs.replace(run.data, samples=samples),
            training=msgspec.structs.replace(run.training, batch=batch, epochs=1),
        )
        machine = Machine.this()
        units = units_of(stages, problem, load(None))
        placed = place(stages, machine, scale=True, units=units)
        with tempfile.TemporaryDirectory(prefix="dovetail-measured-") as folder:
            found = start(planned_run(short, placed, machine, batch), Path(folder) / "run")
        words = ", ".join(f"{stage.units} x {stage.resource}" for stage in stages)
        say(f"ran {words}: {found.samples_per_s:,.0f} samples/s")
        return found.samples_per_s

    return reached
