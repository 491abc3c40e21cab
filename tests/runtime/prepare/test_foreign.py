"""Checkpoints of another run, and flags that change what a run is: refused where samples would count twice or never."""

import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint, table_seed
from dovetail.runtime.checkpoint import RunManifest
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.fingerprint import Fingerprint
from dovetail.runtime.finished.restore import restore_model, table_rows
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.server.shard import Shard
from dovetail.spec.run import Run, RunModel, with_settings
from dovetail.spec.run_sections import RunOptimizer
from testbed.direct_servers import DirectServers
from tests.runtime.runs import DATA, MODEL, clicks, make_run

ADAM = RunOptimizer(name="adam", learning_rate=0.01)
BEFORE = make_run(samples=1000, optimizer=ADAM)
FIELD = {"num_rows": 240, "width": 4, "hidden": [16, 8]}


def other(**settings: Any) -> Run:
    """Return the run with some keys set otherwise; `__` stands for a dot."""
    return with_settings(BEFORE, {key.replace("__", "."): value for key, value in settings.items()}, place="a test")


@pytest.fixture(scope="module")
def at_the_end(tmp_path_factory) -> Path:
    """The folder of a run that has done its epoch."""
    folder = tmp_path_factory.mktemp("foreign") / "run"
    prepare(BEFORE, folder)
    alone = DirectServers(folder)
    alone.run()
    alone.close()
    return folder


@pytest.fixture
def ended(at_the_end, tmp_path) -> Path:
    return Path(shutil.copytree(at_the_end, tmp_path / "ended"))


@pytest.fixture
def halfway(at_the_end, tmp_path) -> Path:
    """The same, as if its last checkpoint were in the middle of the epoch."""
    folder = Path(shutil.copytree(at_the_end, tmp_path / "halfway"))
    newest = checkpoints.newest(folder)
    msgspec.structs.replace(RunManifest.read(newest), position=600).write(newest)
    return folder


CHANGES_THE_ORDER = [
    (other(training__seed=4), "training.seed was 3 and is now 4"),
    (other(data__shuffle=False), "data.shuffle was true and is now false"),
    (other(data__block_samples=32), "data.block_samples was 64 and is now 32"),
    (other(data__options=DATA | {"num_samples": 1000, "seed": 9}), "data.options was"),
    (other(data__samples=900), "data.samples was 1000 and is now 900"),
    (other(model__loss="hinge"), 'model.loss was null and is now "hinge"'),
]


@pytest.mark.parametrize(("run", "words"), CHANGES_THE_ORDER)
def test_what_changes_the_order_is_refused_within_an_epoch(halfway, run, words):
    before = (halfway / "blueprint.json").read_bytes()

    with pytest.raises(TrainingError, match="in the middle of an epoch") as caught:
        prepare(run, halfway, resume=True)

    assert words in str(caught.value)
    assert "until the epoch is over" in caught.value.hint
    assert (halfway / "blueprint.json").read_bytes() == before


@pytest.mark.parametrize(("run", "words"), CHANGES_THE_ORDER)
def test_what_changes_the_order_is_said_at_the_end_of_an_epoch(ended, run, words):
    said: list[str] = []

    prepare(run, ended, resume=True, tell=said.append)

    assert any(words in each for each in said)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (other(model__options=FIELD | {"num_rows": 250}), "table 0 was `layers.embedding` of 240 rows"),
        (other(model__options=FIELD | {"hidden": [16, 9]}), "dense parameter 2 was"),
        (other(optimizer__name="sgd"), 'optimizer was "adam" and is now "sgd"'),
        (other(optimizer__rows="adagrad"), 'row optimizer was "adam" and is now "adagrad"'),
        (other(data__options=DATA | {"num_samples": 1000, "num_dense": 2}), "data.numbers was"),
    ],
)
def test_another_model_optimizer_or_columns_are_refused_with_the_difference(ended, run, words):
    with pytest.raises(TrainingError, match="is of another run") as caught:
        prepare(run, ended, resume=True)

    assert words in str(caught.value)
    assert caught.value.hint


def test_batch_mode_workers_servers_and_rates_may_change_and_are_said(halfway):
    said: list[str] = []
    run = other(training__batch=100, training__mode="async", worker=[{"count": 3}], servers__count=2,
                optimizer__learning_rate=0.5)  # fmt: skip

    prepare(run, halfway, resume=True, tell=said.append)

    assert said == [
        "optimizer.learning_rate was 0.01 and is now 0.5",
        "row optimizer.learning_rate was 0.01 and is now 0.5",
        "training.batch was 200 and is now 100",
        'training.mode was "sync" and is now "async"',
        "servers.count was 1 and is now 2",
        "the number of workers was 2 and is now 3",
    ]


def test_rows_are_updated_at_the_rate_that_a_run_goes_on_with(halfway, tmp_path):
    blueprint = prepare(other(optimizer__learning_rate=0.5), halfway, resume=True)

    shard = Shard(blueprint, 0, tmp_path / "rows")
    shard.load(checkpoints.newest(halfway))
    optimizer = shard.tables[0].optimizer
    shard.close()

    assert optimizer.learning_rate == 0.5


def test_data_that_lie_elsewhere_are_the_same_data(halfway):
    # An option that changes no sample: what it was is said, and the run goes on within its epoch.
    options = DATA | {"num_samples": 1000, "truth": "deep"}
    said: list[str] = []

    prepare(other(data__options=options), halfway, resume=True, tell=said.append)

    assert len(said) == 1
    assert said[0].startswith("data.options was")


class OtherClicks:
    """Other samples under the same name."""

    def __init__(self):
        self.schema, self.num_samples = clicks(num_samples=1000).schema, 1000

    def read(self, first, last):
        return clicks(num_samples=1000, seed=5).read(first, last)


class LazyClicks(OtherClicks):
    """Opens what cannot be sent to a worker when it is first read."""

    def read(self, first, last):
        self.opened = threading.Lock()
        return super().read(first, last)


def test_a_source_that_holds_a_lock_once_it_is_read_can_still_be_sent_to_workers(tmp_path):
    source = LazyClicks()

    blueprint = prepare(BEFORE, tmp_path / "run", source=source)

    assert blueprint.looks.first
    assert not hasattr(source, "opened")


def test_a_file_of_code_that_changed_is_said(tmp_path):
    code = tmp_path / "own.py"
    code.write_text("from dovetail.models import load_model\ndef build(**o):\n    return load_model('ctr-dnn', **o)\n")
    run = other(model__name=f"{code}:build")
    prepare(run, tmp_path / "run")
    code.write_text(code.read_text() + "# another\n")
    said: list[str] = []

    prepare(run, tmp_path / "run", resume=True, tell=said.append)

    assert len(said) == 1
    assert said[0].startswith("the checksum of code was {")


def test_other_samples_under_the_same_name_are_refused_within_an_epoch(halfway):
    with pytest.raises(TrainingError, match="the first samples' checksum was"):
        prepare(BEFORE, halfway, resume=True, source=OtherClicks())


@pytest.mark.parametrize(
    "run",
    [other(optimizer__name="sgd"), other(optimizer__rows="adagrad"), other(model__options=FIELD | {"num_rows": 250})],
)
def test_a_checkpoint_of_another_run_is_refused_in_a_runs_folder(ended, tmp_path, run):
    foreign = tmp_path / "foreign"
    prepare(run, foreign)
    alone = DirectServers(foreign)
    alone.run()
    alone.close()
    stranger = checkpoints.newest(foreign)
    manifest = msgspec.structs.replace(RunManifest.read(stranger), step=99)
    shutil.copytree(stranger, ended / "checkpoints" / "step-0000000099")
    manifest.write(ended / "checkpoints" / "step-0000000099")

    with pytest.raises(TrainingError, match="step-0000000099 is of another run"):
        prepare(BEFORE, ended, resume=True)
    # One that turns up while a run goes on is passed over, with a word.
    said: list[str] = []
    fits = Fingerprint.of(Blueprint.read(ended))
    assert checkpoints.newest(ended, fits=fits, tell=said.append).name == "step-0000000005"
    assert "step-0000000099 is passed over" in said[0]


def test_a_model_is_not_filled_from_a_checkpoint_of_another_run(ended, tmp_path):
    prepare(other(model__options=FIELD | {"num_rows": 250}), tmp_path / "foreign")

    with pytest.raises(TrainingError, match="is of another run: the embedding table 0 was"):
        restore_model(ended, checkpoint=checkpoints.newest(tmp_path / "foreign"))


def test_rows_that_nobody_used_keep_their_first_values_when_the_order_gets_another_seed(ended, tmp_path):
    # A server makes a row at the first look from (seed, table, key): by the seed that the run began with.
    newest = checkpoints.newest(ended)
    before = table_rows(Blueprint.read(ended), RunManifest.read(newest), newest, 0)

    blueprint = prepare(other(training__seed=4, training__epochs=2), ended, resume=True)

    assert blueprint.run.training.seed == 4
    assert table_rows(blueprint, RunManifest.read(newest), newest, 0).tobytes() == before.tobytes()
    shard = Shard(blueprint, 0, tmp_path / "rows")
    shard.load(newest)
    unused = np.setdiff1d(np.arange(240), shard.tables[0].keys())
    looked_up = shard.tables[0].lookup(unused)
    shard.close()
    assert shard.tables[0].seed == table_seed(3, 0)
    assert np.asarray(looked_up).tobytes() == before[unused].tobytes()


def test_a_run_of_two_epochs_with_another_order_in_the_second_can_go_on_again(ended):
    prepare(other(training__seed=4, training__epochs=2), ended, resume=True)
    alone = DirectServers(ended)
    alone.run()
    alone.close()

    said: list[str] = []
    blueprint = prepare(other(training__seed=4, training__epochs=3), ended, resume=True, tell=said.append)

    assert RunManifest.read(checkpoints.newest(ended)).position == 2000
    assert said == []
    assert blueprint.values_seed == 3


assert RunModel(name="ctr-dnn", options=FIELD) == MODEL
