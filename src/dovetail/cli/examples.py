"""Examples at the end of `--help`, one a line, each with what it is for."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "plan": (
        ("dovetail plan problem.toml", "the cheapest plan at the file's speed"),
        ("dovetail plan problem.toml --min-samples-per-s 200000 --out plan.json", "at another speed, kept"),
        ("dovetail plan problem.toml --max-cost-per-hour 20", "the fastest for the money"),
        ("dovetail plan problem.toml --pareto --plot pareto.html", "what more speed would cost"),
        ("dovetail plan problem.toml --compare", "what other methods would pay"),
    ),
    "check": (("dovetail check problem.toml plan.json", "price a plan by other code than the planner's"),),
    "profile": (
        ("dovetail profile ctr-dnn --batch 1024 --out problem.toml", "a model that comes with Dovetail"),
        ("dovetail profile my_model.py:MyModel --data clicks.parquet --out problem.toml", "your own, on your data"),
        ("dovetail profile dlrm --resources aws:g5.xlarge --out problem.toml", "estimated for what can be rented"),
    ),
    "run": (
        ("dovetail run ctr-dnn", "the fastest layout of this machine"),
        ("dovetail run my_model.py:MyModel --data clicks.parquet --out runs/mine", "your own model and data"),
        ("dovetail run ctr-dnn --on hosts.toml --max-cost-per-hour 5", "on several machines, for the money"),
    ),
    "train": (
        ("dovetail train my_model.py:MyModel --data clicks.parquet", "one process, all cores or the GPU"),
        ("dovetail train my_model.py:MyModel --data clicks.parquet --workers 2", "two workers and a server"),
        ("dovetail train run.toml --timeline timeline.html", "a run file, and who did what when"),
        ("dovetail train --resume runs/ctr-dnn-1 --epochs 2", "go on"),
        ("dovetail train run.toml --on hosts.toml", "on machines that SSH reaches"),
    ),
    "join": (("dovetail join runs/ctr-dnn-1", "one more worker for a run that goes on"),),
    "launch": (("dovetail launch --to slurm plan.json --run run.toml --out job", "a plan as a job of Slurm"),),
    "evaluate": (
        ("dovetail evaluate runs/mine", "on what the run was not trained on"),
        ("dovetail evaluate runs/mine --data test.parquet --metric auc --metric log-loss", "on other data"),
    ),
    "predict": (("dovetail predict runs/mine --data today.parquet --out scores.parquet", "scores of raw rows"),),
    "export": (("dovetail export runs/mine --out model", "files that need PyTorch alone"),),
    "timeline": (
        ("dovetail timeline runs/mine --out timeline.html", "a picture"),
        ("dovetail timeline runs/mine --out trace.json", "for Perfetto and Chrome"),
    ),
    "catalogue": (("dovetail catalogue --kind gpu --max-usd-per-hour 2", "GPUs for at most 2 USD an hour"),),
    "simulate": (
        ("dovetail simulate jobs.json", "under the default policy"),
        ("dovetail simulate jobs.json --compare --plot policies.html", "under every policy"),
        ("dovetail simulate jobs.csv --nodes gpu:8x4 --policy my_policy.py:Mine", "a trace, a policy of your own"),
    ),
    "serve": (("dovetail serve --folder cluster --nodes cpu:2x1", "share two cores of this machine"),),
    "submit": (
        ("dovetail submit run.toml --folder cluster --max-workers 2", "a training run"),
        ("dovetail submit --folder cluster --name ddp -- torchrun train.py", "any program"),
    ),
    "jobs": (("dovetail jobs --folder cluster", "who runs, who waits"),),
    "resize": (("dovetail resize ctr-dnn-1 2 --folder cluster", "two workers from now on"),),
    "cancel": (("dovetail cancel ctr-dnn-1 --folder cluster", "its state is kept"),),
    "doctor": (("dovetail doctor", "what this machine offers, and what is missing"),),
    "table": (("dovetail table runs/mine/checkpoints/step-0000000180/table-0/server-0 --hot 5", "what rows it holds"),),
}
"""By the command's name: what is typed, and what for."""


def examples_of(name: str) -> str | None:
    """Return the end of a command's help, or None for a command that needs no example."""
    if name not in EXAMPLES:
        return None
    return "\n\n".join(["Examples:", *(f"  $ {command}  # {what}" for command, what in EXAMPLES[name])])
