"""Two sites on this machine, joined by what they exchange every few steps: one model, the same at both in the end.

python examples/two_sites.py out/sites
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from safetensors.numpy import load_file

RUN = Path(__file__).parent / "runs" / "two-sites.toml"
DOVETAIL = [sys.executable, "-c", "from dovetail.cli.main import main; main()"]
NAMES = ("here", "there")


def main(folder: str) -> None:
    """Train at both sites, and compare what they end with."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([*DOVETAIL, "site-keys", str(RUN)], check=True, timeout=60)
    sites = []
    for name in NAMES:
        command = ["train", str(RUN), "--site", name, "--out", f"{folder}/{name}"]
        print(f"$ dovetail {' '.join(command)}", flush=True)
        quiet = None if name == NAMES[0] else subprocess.DEVNULL
        sites.append(subprocess.Popen([*DOVETAIL, *command], stdout=quiet, stderr=quiet))
    try:
        for name, site in zip(NAMES, sites, strict=True):
            assert site.wait(150) == 0, f"the site {name} failed"
    finally:
        for site in sites:
            site.kill()
    here, there = (sorted(Path(folder, name, "checkpoints").glob("step-*/dense-0.safetensors"))[-1] for name in NAMES)
    assert (load_file(here)["values"] == load_file(there)["values"]).all(), "the sites end with other parameters"
    print("both sites end with the same parameters, to the last bit")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "out/sites")
