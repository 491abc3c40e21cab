"""What `make demo` runs: the main job, on this machine, in a few minutes at most. Pictures end up in out/.

    python examples/demo.py
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
STEPS = [
    (
        "The cheapest plan that trains CTR-DNN at 2 million samples/s on CPU cores and V100s, with proof",
        "plan {problem} --plot out/plan.html --out out/plan.json",
    ),
    ("The same plan, priced by an evaluator that knows nothing of planning", "check {problem} out/plan.json"),
    ("What more speed would cost", "plan {problem} --pareto --points 10 --plot out/pareto.html"),
    ("What every other way to plan would have paid", "plan {problem} --compare --plot out/comparison.html"),
]


def main() -> None:
    """Run the steps one after the other, each as a user would type it."""
    (ROOT / "out").mkdir(exist_ok=True)
    dovetail = Path(sys.executable).parent / "dovetail"
    for title, command in STEPS:
        arguments = shlex.split(command.format(problem="examples/problems/ctr-dnn.toml"))
        print(f"\n# {title}\n$ dovetail {shlex.join(arguments)}", flush=True)
        subprocess.run([dovetail, *arguments], cwd=ROOT, check=True)
    print("\nLook at:")
    for picture in sorted((ROOT / "out").glob("*.html")):
        print(f"  {picture.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
