"""How `dovetail jobs` shows jobs."""

from dovetail.cli.jobs import _print_jobs

JOB = {
    "id": "click-model-12", "state": "running", "stopping": False, "user": "ann", "workers": 4, "type": "cpu",
    "total": 100, "done": 50, "samples_per_s": 49_600.0, "loss": 0.6681, "submitted_s": 100.0,
    "finished_s": 112.0, "error": None,
}  # fmt: skip


def test_a_long_error_takes_no_room_from_the_other_columns(capsys):
    error = "model `shop:build` could not be built: TypeError: build() got an unexpected keyword argument 'widht' " * 2
    _print_jobs([JOB, JOB | {"id": "wrong-13", "state": "failed", "workers": 0, "error": error}])

    shown = capsys.readouterr().out
    for words in (
        "click-model-12",
        "running",
        "ann",
        "4 cpu",
        "50%",
        "0.6681",
        "12 s",
        "wrong-13",
        "failed",
        "shop:build",
    ):
        assert words in shown, shown
