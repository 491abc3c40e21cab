"""Slurm: a heterogeneous job, one component for the first node and one for each type."""

from __future__ import annotations

import shlex

from dovetail.manifests.nodes import PlannedNodes, notes, train_line
from dovetail.manifests.pool import NodePool
from dovetail.manifests.ray import PORT, head_words, node_words


class Slurm:
    """`sbatch` takes the nodes of all components at once; Ray is started on them, then the training."""

    file = "job.sbatch"
    start = "sbatch job.sbatch"
    here = "beside this file, in a folder that all nodes see"

    def write(self, planned: PlannedNodes) -> str:
        """Return the script."""
        return "\n".join([*_components(planned), "", *_cluster(planned), "", *_training(), ""])


def _components(planned: PlannedNodes) -> list[str]:
    """Return what is asked of Slurm; memory by the core, as --mem of one component would hold for all."""
    memory_mib = -(-planned.head_bytes // (planned.head_cores << 20))
    lines = [
        "#!/bin/bash",
        "# Start it in the folder that holds plan.json and run.toml, which all nodes see: sbatch job.sbatch",
        *(f"# {line}" for line in notes(planned, here=Slurm.here)),
        f"#SBATCH --job-name={planned.name}",
        f"#SBATCH --nodes=1 --ntasks-per-node=1 --cpus-per-task={planned.head_cores} --mem-per-cpu={memory_mib}M",
    ]
    for group in planned.groups:
        lines += ["#SBATCH hetjob", f"#SBATCH {_request(group)}"]
    return lines


def _request(group: NodePool) -> str:
    """Return what the nodes of one type are."""
    words = [f"--nodes={group.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={group.cores}"]
    if group.gpus:
        words.append(f"--gpus-per-node={group.gpus}")
    # A site has its own words for its nodes; a feature called like the type is the likeliest.
    return " ".join([*words, f"--constraint={group.name}"])


def _cluster(planned: PlannedNodes) -> list[str]:
    """Return the lines that make a Ray cluster of the nodes."""
    head = shlex.join([*head_words(), "--block"])
    lines = [
        "set -eu",
        "started=()",
        "trap 'kill \"${started[@]}\" 2>/dev/null || true; wait' EXIT",
        "head=$(srun --het-group=0 hostname --ip-address | awk '{ print $1 }')",
        f'srun --het-group=0 {head} --node-ip-address="$head" &',
        "started+=($!)",
        "for _ in $(seq 60); do",
        f'  ray status --address="$head:{PORT}" >/dev/null 2>&1 && break',
        "  sleep 2",
        "done",
    ]
    for number, group in enumerate(planned.groups, start=1):
        words = shlex.join(node_words(group, head="HEAD")).replace("=HEAD:", '="$head":')
        lines += [f"srun --het-group={number} {words} &", "started+=($!)"]
    return lines


def _training() -> list[str]:
    """Return the line that trains, on the first node; a signal reaches it, and it keeps a checkpoint."""
    return [
        "# It keeps a checkpoint on SIGTERM; for one before the time is over: sbatch --signal=B:TERM@120 job.sbatch",
        f"{train_line('run', on=f'$head:{PORT}')} &",
        "training=$!",
        "trap 'kill -TERM \"$training\"' TERM",
        'wait "$training" || wait "$training"',
    ]
