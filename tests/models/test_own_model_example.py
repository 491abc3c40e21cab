"""The example of a user's own model runs and comes close to the best."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"


def test_the_example_of_an_own_model_comes_within_a_hundredth_of_the_best_auc():
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stderr
    reached, best = re.search(r"AUC ([\d.]+), the best reachable ([\d.]+)", done.stdout).groups()
    assert float(reached) > float(best) - 0.01
    assert "hidden       fc           reads cat" in done.stdout
