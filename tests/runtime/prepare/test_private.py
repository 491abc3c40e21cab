"""Private runs made ready: what they may not be, and which of those that go on have the noise that they had."""

import msgspec
import pytest
from torch import nn

from dovetail.errors import DovetailError
from dovetail.privacy.accountant import SpentSteps, epsilon_of
from dovetail.privacy.keys import NOISE_KEY, SAMPLING_KEY
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import KEYS, SPENDING
from dovetail.runtime.prepare.private import check_model
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.spending import Spending, SpendingRecord
from dovetail.spec.run import Run, RunData, RunModel, RunTraining, RunWorker
from tests.runtime.runs import DATA, NUM_ROWS

MODEL = {"name": "ctr-dnn", "options": {"num_rows": NUM_ROWS, "width": 4, "hidden": [16, 8]}}
PRIVACY = {"epsilon": 3.0, "delta": 1e-5, "clip": 0.5, "accountant": "rdp"}
"""By the quicker accountant."""


def private_run(*, samples: int = 1010, batch: int = 100, epochs: int = 2, privacy=PRIVACY, **more) -> Run:
    sections = {
        "model": MODEL,
        "data": {"name": "clicks", "options": DATA | {"num_samples": samples}},
        "training": {"batch": batch, "epochs": epochs, "seed": 3},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "privacy": privacy,
        **more,
    }
    return msgspec.convert(sections, Run)


def at_step(folder, step: int, **changes) -> None:
    """Have a folder end with a checkpoint of so many steps, as if they had been done."""
    blueprint = Blueprint.read(folder)
    record = SpendingRecord(folder, blueprint.private)
    for each in range(blueprint.private.first_step, step):
        record.begin(each)
    record.end(step)
    newest = checkpoints.newest(folder)
    partial = checkpoints.begin(folder, step)
    manifest = checkpoints.RunManifest.read(newest)
    for name in manifest.files:
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        (partial / name).write_bytes((newest / name).read_bytes())
    kept = {"step": step, "position": step * blueprint.batch, "spending": record.at(step), **changes}
    checkpoints.publish(partial, msgspec.structs.replace(manifest, **kept))


def test_a_new_run_has_noise_for_its_budget_whole_steps_and_secrets_of_its_own(tmp_path):
    blueprint = prepare(private_run(), tmp_path / "run")

    private = blueprint.private
    assert (private.samples, private.batch, private.clip) == (1010, 100, 0.5)
    assert (blueprint.samples, blueprint.all_samples) == (1100, 1010)  # 11 steps, of which none is a part
    assert private.until_step == private.planned_step == 22
    assert epsilon_of([SpentSteps(rate=100 / 1010, noise=private.noise, steps=22)], 1e-5, "rdp") <= 3.0
    assert private.deviation == private.noise * 0.5
    for name in (NOISE_KEY, SAMPLING_KEY):
        path = tmp_path / "run" / KEYS / name
        assert len(path.read_bytes()) == 32
        assert path.stat().st_mode & 0o077 == 0
    assert Spending.read(tmp_path / "run").steps == []


def test_noise_that_is_given_says_how_many_steps_the_budget_lasts_for(tmp_path):
    private = prepare(private_run(privacy=PRIVACY | {"noise": 1.0}), tmp_path / "run").private

    assert (private.noise, private.lasts) == (1.0, False)
    how = {"rate": 100 / 1010, "noise": 1.0}
    assert epsilon_of([SpentSteps(steps=private.until_step, **how)], 1e-5, "rdp") <= 3.0
    assert epsilon_of([SpentSteps(steps=private.until_step + 1, **how)], 1e-5, "rdp") > 3.0


def test_a_budget_for_no_step_is_refused_and_leaves_no_run(tmp_path):
    with pytest.raises(TrainingError, match=r"does not last for one step with noise 0\.1"):
        prepare(private_run(privacy=PRIVACY | {"noise": 0.1}), tmp_path / "run")

    prepare(private_run(), tmp_path / "run")


def test_a_batch_of_more_than_there_is_is_refused(tmp_path):
    with pytest.raises(TrainingError, match="batch is 2,000, and there are 1,010"):
        prepare(private_run(batch=2000), tmp_path / "run")


def test_a_run_that_goes_on_as_it_was_has_the_noise_it_had(tmp_path):
    folder = tmp_path / "run"
    before = prepare(private_run(), folder)
    at_step(folder, 11)

    after = prepare(private_run(worker=[{"name": "a"}, {"name": "b"}]), folder, resume=True)

    assert after.private.stream != before.private.stream  # rows move to servers: sums are others' to make
    again = prepare(private_run(worker=[{"count": 3}]), folder, resume=True)
    assert again.private == after.private


CHANGES = {
    "clip": {"privacy": PRIVACY | {"clip": 0.7}},
    "epsilon": {"privacy": PRIVACY | {"epsilon": 4.0}},
    "batch": {"batch": 50},
    "rate": {"optimizer": {"name": "sgd", "learning_rate": 0.5}},
    "order": {"data": {"name": "clicks", "options": DATA | {"num_samples": 1010}, "block_samples": 32}},
    "accountant": {"privacy": PRIVACY | {"accountant": "pld"}},
}


@pytest.mark.parametrize(
    "what", [name if name in ("clip", "order") else pytest.param(name, marks=pytest.mark.slow) for name in CHANGES]
)
def test_a_run_that_goes_on_otherwise_has_new_noise_and_pays_beside_what_was_spent(what, tmp_path):
    folder = tmp_path / "run"
    before = prepare(private_run(), folder)
    at_step(folder, 11)

    told: list[str] = []
    after = prepare(private_run(**CHANGES[what]), folder, resume=True, tell=told.append)

    assert after.private.stream != before.private.stream
    assert after.private.first_step == 11
    assert any("new noise" in line for line in told)
    left = after.private.until_step - 11
    spent = [
        SpentSteps(rate=100 / 1010, noise=before.private.noise, steps=11),
        SpentSteps(rate=after.private.rate, noise=after.private.noise, steps=left),
    ]
    privacy = after.run.privacy
    assert epsilon_of(spent, 1e-5, privacy.accountant) <= privacy.epsilon


@pytest.mark.parametrize("lost", [NOISE_KEY, SAMPLING_KEY])
def test_a_run_whose_secret_is_lost_gets_a_new_stream(lost, tmp_path):
    folder = tmp_path / "run"
    before = prepare(private_run(), folder)
    at_step(folder, 11)
    (folder / KEYS / lost).unlink()

    assert prepare(private_run(), folder, resume=True).private.stream != before.private.stream


def test_a_checkpoint_of_before_the_stream_began_gets_a_new_one(tmp_path):
    folder = tmp_path / "run"
    prepare(private_run(), folder)
    at_step(folder, 11)
    second = prepare(private_run(batch=50), folder, resume=True)
    checkpoints.folder_of(folder, 11).rename(tmp_path / "lost")  # the first one, of step 0, is left

    third = prepare(private_run(batch=50), folder, resume=True)

    assert second.private.first_step == 11
    assert third.private.first_step == 0
    assert third.private.stream != second.private.stream


def test_more_epochs_than_the_budget_was_for_are_refused_until_it_is_raised(tmp_path):
    folder = tmp_path / "run"
    prepare(private_run(), folder)
    at_step(folder, 22)

    with pytest.raises(DovetailError, match=r"a budget of epsilon 2\.9 is spent"):
        prepare(private_run(epochs=3, privacy=PRIVACY | {"epsilon": 2.9}), folder, resume=True)
    assert prepare(private_run(epochs=3, privacy=PRIVACY | {"epsilon": 6.0}), folder, resume=True).private.noise > 0.5


def test_a_promise_is_neither_dropped_nor_made_too_late(tmp_path):
    folder = tmp_path / "run"
    prepare(private_run(), folder)
    at_step(folder, 11)
    with pytest.raises(TrainingError, match="is a private run, and would go on without a promise"):
        prepare(private_run(privacy={}), folder, resume=True)

    other = tmp_path / "other"
    plain = private_run(privacy={}, samples=1000)
    prepare(plain, other)
    manifest = checkpoints.RunManifest.read(checkpoints.newest(other))
    partial = checkpoints.begin(other, 10)
    for name in manifest.files:
        (partial / name).write_bytes((checkpoints.newest(other) / name).read_bytes())
    checkpoints.publish(partial, msgspec.structs.replace(manifest, step=10, position=1000))
    with pytest.raises(TrainingError, match="was not private for its first 10 steps"):
        prepare(private_run(samples=1000), other, resume=True)


def test_a_run_whose_record_is_gone_does_not_go_on(tmp_path):
    folder = tmp_path / "run"
    prepare(private_run(), folder)
    at_step(folder, 11)
    (folder / SPENDING).unlink()

    with pytest.raises(TrainingError, match=r"privacy.json is missing"):
        prepare(private_run(), folder, resume=True)


SERVERS = Run(model=RunModel(name="own"), workers=[RunWorker()])
ALONE = Run(model=RunModel(name="own"), data=RunData(), training=RunTraining())


@pytest.mark.parametrize(
    ("layer", "run", "reason"),
    [
        (nn.BatchNorm1d(4), ALONE, "mix samples of a batch"),
        (nn.SyncBatchNorm(4), ALONE, "mix samples of a batch"),
        (nn.InstanceNorm1d(4, track_running_stats=True), ALONE, "kept without noise"),
        (nn.Dropout(0.5), SERVERS, "draws numbers"),
        (nn.LSTM(3, 3, num_layers=2, dropout=0.1), SERVERS, "draws numbers"),
        (nn.LayerNorm(4), SERVERS, None),
        (nn.Dropout(0.5), ALONE, None),
        (nn.Dropout(0.0), SERVERS, None),
        (nn.InstanceNorm1d(4), ALONE, None),
    ],
)
def test_layers_that_mix_samples_or_answer_otherwise_when_asked_again_are_refused(layer, run, reason):
    model = nn.Sequential(nn.Linear(4, 4), layer)
    if reason is None:
        check_model(run, model)
        return
    with pytest.raises(TrainingError, match=reason) as caught:
        check_model(run, model)
    assert "layer `1`" in str(caught.value)
