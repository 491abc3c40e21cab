"""Dovetail trains deep models on machines that do not match.

    import dovetail

    problem = dovetail.profile("ctr-dnn")                        # how long each layer takes here
    plan = dovetail.plan(problem, min_samples_per_s=50_000)      # which layers where, on how many, for the least money
    result = dovetail.train(MyModule(), frame, folder="runs/mine")
    dovetail.evaluate("runs/mine")

Functions have the names of the commands; every name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.on_demand import on_demand
from dovetail.version import __version__

if TYPE_CHECKING:
    from dovetail import (
        catalogue,
        charts,
        data,
        embedding,
        models,
        orchestrate,
        planner,
        privacy,
        profiler,
        runtime,
        scheduler,
        simulator,
        spec,
    )
    from dovetail.catalogue.resolve import read_problem
    from dovetail.embedding.table import Table
    from dovetail.errors import DovetailError
    from dovetail.orchestrate.commands import plan, profile, simulate
    from dovetail.orchestrate.pipeline import run
    from dovetail.runtime.api import resume, train
    from dovetail.runtime.finished.evaluate import evaluate_run as evaluate
    from dovetail.runtime.finished.export import export_run as export
    from dovetail.runtime.finished.predict import predict_run as predict
    from dovetail.runtime.finished.result import TrainingResult
    from dovetail.runtime.launch.join import join
    from dovetail.runtime.monitor.callbacks import Callback
    from dovetail.serve.here import serve_here as serve
    from dovetail.spec.files import read_plan, write_problem

__all__ = [
    "Callback",
    "DovetailError",
    "Table",
    "TrainingResult",
    "__version__",
    "catalogue",
    "charts",
    "data",
    "embedding",
    "evaluate",
    "export",
    "join",
    "models",
    "orchestrate",
    "plan",
    "planner",
    "predict",
    "privacy",
    "profile",
    "profiler",
    "read_plan",
    "read_problem",
    "resume",
    "run",
    "runtime",
    "scheduler",
    "serve",
    "simulate",
    "simulator",
    "spec",
    "train",
    "write_problem",
]

__getattr__, __dir__ = on_demand(__name__)
