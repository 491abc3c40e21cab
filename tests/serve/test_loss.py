"""A job whose workers come and go learns what the same job learns that is left alone."""

from pathlib import Path

import pytest

from dovetail.runtime.finished.restore import restore_model
from tests.serve.daemons import Daemon

SIZES = (2, 4, 1, 3, 2)
RUN = {
    "model": {"name": "ctr-dnn", "options": {"num_rows": 2_600, "width": 8, "hidden": [32, 32]}},
    "data": {"options": {"truth": "logistic", "rows_per_slot": 100}, "samples": 1_000_000},
    "training": {"batch": 500, "seed": 3},
    "optimizer": {"name": "adam", "learning_rate": 0.005},
    "worker": [{"name": "worker"}],
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_five_resizes_change_the_loss_by_no_more_than_the_order_of_sums_does(tmp_path):
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:4x1", "--policy", "fixed-1") as daemon:
        alone = daemon.submit(name="alone", run=RUN, max_workers=1)["id"]
        left = daemon.wait_over(alone, 240.0)
        job = daemon.submit(name="resized", run=RUN, max_workers=1)["id"]
        for workers in SIZES:
            daemon.wait(job, lambda facts: (facts["done"] or 0) > 0)
            daemon.client.ask("POST", f"/v1/jobs/{job}/resize", {"workers": workers})
            daemon.wait(job, lambda facts, workers=workers: facts["present"] == workers, 60.0)
        resized = daemon.wait_over(job, 240.0)
        events = daemon.client.ask("GET", f"/v1/jobs/{job}/events")["events"]

        assert (left["state"], resized["state"], resized["attempt"]) == ("done", "done", 1)
        assert [event["workers"] for event in events if event["what"] == "resized"] == list(SIZES)
        assert left["done"] == resized["done"] == left["total"] == 1_000_000, "every sample once"
        assert resized["loss"] == pytest.approx(left["loss"], rel=0.01)
        states = [restore_model(Path(each["folder"]) / "run").state_dict() for each in (left, resized)]
        assert states[0].keys() == states[1].keys()
