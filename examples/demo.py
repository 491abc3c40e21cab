"""What `make demo` runs: the main job in seven steps, on this machine. What it makes ends up in out/.

python examples/demo.py          # a minute or two
python examples/demo.py --all    # and all that Dovetail can do besides
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUT = ROOT / "out"
LOG = OUT / "demo.log"
PROBLEM = "examples/problems/ctr-dnn.toml"
MODEL = "examples/first_training.py"
REPORT = "out/report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command as a user would type it, and what to look at in its output."""

    title: str
    look: str
    command: str
    shown: str = ""
    """Which lines of the results are shown, as a regular expression; all, unless said otherwise."""


MAIN = (
    Step(
        title="A click log, as you may have one",
        look="the best AUC that any model can reach on it is known: generated data say so",
        command="data make out/clicks.parquet --rows 200000 -o rows_per_slot=1000",
        shown="written|numbers|slots|best auc",
    ),
    Step(
        title=f"Your own PyTorch model ({MODEL}), trained on that file in one process",
        look="samples/s, and what you could do with the result",
        command=f"{MODEL} out/clicks.parquet out/mine",
    ),
    Step(
        title="The same model measured, planned, and trained as planned",
        look="the last column: each part measured over predicted, and so the whole",
        command=f"run {MODEL}:MyModel --data out/clicks.parquet --short-runs-s 8 --out out/planned",
    ),
    Step(
        title="It goes over a parameter server and two workers, each batch split by their speeds",
        look="the workers' shares and idle times; out/timeline.html has every step of theirs",
        command=f"train {MODEL}:MyModel --data out/clicks.parquet --workers 2 --batch 1000 "
        "--set optimizer.learning_rate=0.01 --out out/shared --timeline out/timeline.html",
    ),
    Step(
        title="A model measured on CPU cores and V100s: the cheapest plan at 2 million samples/s",
        look="which layers go where, and the last line: no plan costs less",
        command=f"plan {PROBLEM} --out out/plan.json --plot out/plan.html",
    ),
    Step(
        title="Twelve such jobs share one cluster, under every policy",
        look="mean JCT, how long a job takes from its coming to its end; fixed-N never resizes",
        command="simulate examples/workloads/twelve-jobs.json --compare --plot out/policies.html",
    ),
    Step(
        title="All of it as one page: plans, runs and the cluster",
        look=f"{REPORT} in a browser; it is one file that asks nobody for anything",
        command=f"dashboard {PROBLEM} out/mine out/shared out/planned examples/workloads/twelve-jobs.json "
        f"--title 'What the demo did' --out {REPORT}",
    ),
)
REST = (
    Step(
        title="How fast each layer of a CTR-DNN is on one core of this machine",
        look="embedding and fc1: where the time goes",
        command="profile ctr-dnn --batch 512 -o num_rows=100000 --out out/measured.toml",
    ),
    Step(
        title="The cheapest plan for what was just measured",
        look="one core is the cheapest where no speed is asked for",
        command="plan out/measured.toml --memory",
    ),
    Step(
        title="The plan for V100s, priced by an evaluator that knows nothing of planning",
        look="the same cost",
        command=f"check {PROBLEM} out/plan.json",
    ),
    Step(
        title="What more speed would cost",
        look="the bend in out/pareto.html",
        command=f"plan {PROBLEM} --pareto --points 10 --plot out/pareto.html",
    ),
    Step(
        title="What every other way to plan would have paid",
        look="the column that says how far above the optimum each ends",
        command=f"plan {PROBLEM} --compare --rounds 60 --plot out/comparison.html",
    ),
    Step(
        title="A run file: a model, its data, two workers and a server",
        look="loss and AUC of samples before they were trained on",
        command="train examples/runs/ctr-dnn.toml --out out/run",
    ),
    Step(
        title="How good it is on samples it has not seen",
        look="the AUC",
        command="evaluate out/run",
    ),
    Step(
        title="A plan of two stages: workers that look up rows feed one that holds the layers",
        look="idle times of both stages",
        command="train ctr-dnn --plan examples/plans/two-stages.json --scale --samples 60000 --out out/stages",
    ),
    Step(
        title="A parameter server is killed in the middle of a training, and comes back as it was",
        look="no step is lost",
        command="examples/killed_server.py out/killed",
    ),
    Step(
        title="A daemon that shares this machine: three jobs, one resized while it runs",
        look="how long a resize takes",
        command="examples/small_cluster.py out/cluster",
    ),
    Step(
        title="Two sites train one model, and exchange what they learnt every eight steps",
        look="bytes between them",
        command="examples/two_sites.py out/sites",
    ),
    Step(
        title="Rows on a device, the hot ones there and the others below it; the CPU plays the GPU",
        look="where rows ended, and the share of look-ups found on the device",
        command="train ctr-dnn --table device --set table.device=cpu --set table.device_bytes=2000000 "
        "--set model.options.num_rows=50000 --samples 30000 --out out/device",
    ),
    Step(
        title="An embedding table trained in half of the memory it needs",
        look="RAM and disk",
        command="examples/large_table.py out/table",
    ),
    Step(
        title="What its checkpoint holds",
        look="the hottest rows",
        command="table out/table --hot 5 --plot out/table.html",
    ),
)


def run(number: int, step: Step) -> None:
    """Run one step, with its results on the terminal and the rest of what it says in the log."""
    arguments = shlex.split(step.command)
    beside = Path(sys.executable).parent
    program = Path(sys.executable) if arguments[0].endswith(".py") else beside / "dovetail"
    said = f"$ {program.name} {step.command}"
    print(f"\n[{number}] {step.title}\n{said}", flush=True)
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"\n{said}\n")
        log.flush()
        began = time.monotonic()
        process = subprocess.Popen(
            [program, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"COLUMNS": "118"},
        )
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() and re.search(step.shown, line):
                print(f"    {line.rstrip()}", flush=True)
        if process.wait():
            print("".join(LOG.read_text(encoding="utf-8").rpartition(said)[1:]), file=sys.stderr)
            sys.exit(f"error: step {number} ended with {process.returncode}\n\nhint: all it said is above")
    print(f"  look at: {step.look}  ({time.monotonic() - began:.0f} s)", flush=True)


def main() -> None:
    """Run the steps one after the other, each as a user would type it."""
    steps = (*MAIN, *REST) if "--all" in sys.argv[1:] else MAIN
    OUT.mkdir(exist_ok=True)
    LOG.write_text("", encoding="utf-8")
    for name in {word for step in steps for word in step.command.split() if word.startswith("out/")}:
        shutil.rmtree(ROOT / name, ignore_errors=True)  # a run is never written over
    for number, step in enumerate(steps, start=1):
        run(number, step)
    pictures = [word for step in steps for word in step.command.split() if word.endswith(".html")]
    print(f"""
Open       {REPORT}: all that was done, in one file
or live    .venv/bin/dovetail dashboard out {PROBLEM} examples/workloads/twelve-jobs.json
pictures   {" ".join(word for word in pictures if word != REPORT)}
said       {LOG.relative_to(ROOT)}: what the commands told while they worked
more       make demo ALL=1, and docs/README.md""")


if __name__ == "__main__":
    main()
