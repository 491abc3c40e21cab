"""What `make demo` runs: the main job, on this machine, in a few minutes at most. Pictures end up in out/.

python examples/demo.py
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROBLEM = "examples/problems/ctr-dnn.toml"
STEPS = [
    (
        "How fast each layer of a small CTR-DNN is on one core of this machine",
        "profile ctr-dnn --batch 512 -o num_rows=100000 --min-samples-per-s 30000 --out out/measured.toml",
    ),
    ("The cheapest plan for what was just measured", "plan out/measured.toml --memory"),
    (
        "The cheapest plan that trains CTR-DNN at 2 million samples/s on CPU cores and V100s, with proof",
        f"plan {PROBLEM} --plot out/plan.html --out out/plan.json",
    ),
    ("The same plan, priced by an evaluator that knows nothing of planning", f"check {PROBLEM} out/plan.json"),
    ("What more speed would cost", f"plan {PROBLEM} --pareto --points 10 --plot out/pareto.html"),
    (
        "What every other way to plan would have paid",
        f"plan {PROBLEM} --compare --rounds 60 --plot out/comparison.html",
    ),
    (
        "A small CTR-DNN, trained by two workers and a parameter server, each batch split by their speeds",
        "train examples/runs/ctr-dnn.toml --out out/run --timeline out/timeline.html",
    ),
    ("How good it is on samples it has not seen", "evaluate out/run"),
    ("A click log as a file", "data make out/clicks.parquet --rows 200000"),
    (
        "Trained from that file in one process, as nobody names workers: columns are told by their names and types",
        "train ctr-dnn --data out/clicks.parquet --out out/from-file",
    ),
    (
        "From a model to a result: profiled, planned, trained as planned, predicted and measured side by side",
        "run ctr-dnn --min-samples-per-s 5000 --samples 80000 --out out/planned",
    ),
    (
        "A plan of two stages: workers that look up rows feed one that holds the layers",
        "train ctr-dnn --plan examples/plans/two-stages.json --scale --samples 60000 --out out/stages",
    ),
    (
        "A parameter server is killed in the middle of a training, and comes back as it was",
        "examples/killed_server.py out/killed",
    ),
    (
        "Twelve jobs share one cluster, under every policy",
        "simulate examples/workloads/twelve-jobs.json --compare --plot out/schedule.html",
    ),
    (
        "A daemon that shares this machine: three jobs, one resized while it runs",
        "examples/small_cluster.py out/cluster",
    ),
    ("Two sites train one model, and exchange what they learnt every eight steps", "examples/two_sites.py out/sites"),
    (
        "Rows on a device, the hot ones there and the others below it; the CPU plays the GPU",
        "train ctr-dnn --table device --set table.device=cpu --set table.device_bytes=2000000 "
        "--set model.options.num_rows=50000 --samples 30000 --out out/device",
    ),
    ("An embedding table trained in half of the memory it needs", "examples/large_table.py out/table"),
    ("What its checkpoint holds", "table out/table --hot 5 --plot out/table.html"),
]


def main() -> None:
    """Run the steps one after the other, each as a user would type it."""
    (ROOT / "out").mkdir(exist_ok=True)
    for run in ("run", "from-file", "planned", "stages", "device"):
        shutil.rmtree(ROOT / "out" / run, ignore_errors=True)  # a run is never written over
    dovetail = Path(sys.executable).parent / "dovetail"
    for title, command in STEPS:
        arguments = shlex.split(command)
        program = Path(sys.executable) if arguments[0].endswith(".py") else dovetail
        print(f"\n# {title}\n$ {program.name} {shlex.join(arguments)}", flush=True)
        subprocess.run([program, *arguments], cwd=ROOT, check=True)
    print("\nLook at:")
    for picture in sorted((ROOT / "out").glob("*.html")):
        print(f"  {picture.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
