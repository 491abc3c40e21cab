"""Run files that are wrong: the error names the file and the key, and its hint what belongs there."""

import tomllib

import pytest

from dovetail.errors import SpecError
from dovetail.spec.files import read_struct
from dovetail.spec.run import Run, RunModel, RunWorker, dotted_key, parse_setting, run_from, with_settings

WHOLE = """
[model]
name = "ctr-dnn"
options = { num_rows = 1000 }

[data]
name = "clicks"
samples = 10_000

[training]
batch = 512
epochs = 2
mode = "ssp"
staleness = 2

[optimizer]
name = "adam"
learning_rate = 0.01
clip_norm = 1.0
[optimizer.schedule]
name = "cosine"
total_steps = 40

[servers]
count = 2

[[worker]]
name = "fast"
threads = 2

[[worker]]
name = "slow"
count = 3
share = 0.1

[checkpoint]
every_steps = 10

[network]
shared_memory = false

[faults]
restarts = 3
"""
WRONG = [
    ('name = "ctr-dnn"', 'name = ""', "model.name", "ctr-dnn"),
    ('name = "ctr-dnn"\n', "", "model.name", "add it"),
    ('name = "ctr-dnn"', "name = 5", "model.name", "ctr-dnn"),
    ("options = { num_rows = 1000 }", "options = 5", "model.options", "num_rows"),
    ('[model]\nname = "ctr-dnn"\noptions = { num_rows = 1000 }', "", "model", ""),
    ("[model]", "[modell]", "modell", "model"),
    ("samples = 10_000", "samples = 0", "data.samples", "samples an epoch has"),
    ("samples = 10_000", 'samples = "many"', "data.samples", "samples an epoch has"),
    ("samples = 10_000", "shuffel = true", "data.shuffel", "shuffle"),
    ("batch = 512", "batch = 0", "training.batch", "samples of one step"),
    ("batch = 512", "batch = 2.5", "training.batch", "samples of one step"),
    ("batch = 512", "bach = 512", "training.bach", "batch"),
    ("epochs = 2", "epochs = -1", "training.epochs", "how often"),
    ('mode = "ssp"', 'mode = "bsp"', "training.mode", "ssp"),
    ('mode = "ssp"', 'mode = "ssp"\ndense = "ring"', "training.dense", "sync"),
    ("staleness = 2", "staleness = -1", "training.staleness", "ahead of the slowest"),
    ("staleness = 2", "tail = 0.9", "training.tail", "0 to 0.5"),
    ("staleness = 2", 'reduction = "max"', "training.reduction", "mean"),
    ("staleness = 2", "micro_batch = 0", "training.micro_batch", "at once"),
    ("learning_rate = 0.01", "learning_rate = 0", "optimizer.learning_rate", "above zero"),
    ("learning_rate = 0.01", "learning_rate = nan", "optimizer.learning_rate", "above zero"),
    ("learning_rate = 0.01", "lr = 0.01", "optimizer.lr", ""),
    ("clip_norm = 1.0", "clip_norm = -1.0", "optimizer.clip_norm", "above zero"),
    ("total_steps = 40", 'total_steps = "all"', "optimizer.schedule.total_steps", "linear and cosine"),
    ("total_steps = 40", "steps = 40", "optimizer.schedule.steps", "total_steps"),
    ("[servers]\ncount = 2", "[servers]\ncount = 0", "servers.count", "at least 1"),
    ("[servers]\ncount = 2", "[servers]\nhost_bytes = 1", "servers.host_bytes", "memory"),
    ("threads = 2", "threads = 0", "worker[0].threads", "at least 1"),
    ("threads = 2", "device = 3", "worker[0].device", "cuda"),
    ("threads = 2", "cores = 0.0", "worker[0].cores", "quota"),
    ("threads = 2", "cpus = 2", "worker[0].cpus", ""),
    ("share = 0.1", "share = 1.5", "worker[1].share", "0 to 1"),
    ("share = 0.1", "share = 0.4", "worker", "add up to 1"),
    ('name = "slow"\ncount = 3', 'name = "fast"', "worker", "its own name"),
    ("every_steps = 10", "every_steps = 0", "checkpoint.every_steps", "from one to the next"),
    ("every_steps = 10", "every_s = -5", "checkpoint.every_s", "seconds"),
    ("every_steps = 10", "keep = 0", "checkpoint.keep", "at least 1"),
    ("shared_memory = false", 'shared_memory = "no"', "network.shared_memory", "memory"),
    ("restarts = 3", "restarts = -1", "faults.restarts", "at least 0"),
    ("restarts = 3", "patience_s = 0", "faults.patience_s", "silence"),
    ("[checkpoint]", "[checkpoint]\n[checkpoint]", "", "given twice"),
    ("[checkpoint]", "[checkpoint", "", "place"),
]


@pytest.mark.parametrize(
    ("before", "after", "key", "hint"), WRONG, ids=[f"{n}: {w[1][:30]}" for n, w in enumerate(WRONG)]
)
def test_a_wrong_run_file_is_refused_with_file_key_and_hint(before, after, key, hint, tmp_path):
    assert before in WHOLE
    path = tmp_path / "run.toml"
    path.write_text(WHOLE.replace(before, after, 1))

    with pytest.raises(SpecError) as caught:
        read_struct(path, Run)

    assert str(caught.value).startswith(f"{path}: {key}")
    assert hint in caught.value.hint
    assert caught.value.hint


def test_the_whole_file_is_read_as_it_stands(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(WHOLE)

    run = read_struct(path, Run)

    assert [name for name, _ in run.each_worker()] == ["fast", "slow-0", "slow-1", "slow-2"]
    assert (run.training.mode, run.training.staleness, run.optimizer.schedule.name) == ("ssp", 2, "cosine")


def test_settings_change_single_keys_and_leave_the_rest():
    run = run_from(tomllib.loads(WHOLE), {}, place="run.toml")

    changed = with_settings(run, {"training.batch": 64, "worker.1.threads": 4, "model.options.width": 8}, place="flags")

    assert (changed.training.batch, changed.training.epochs) == (64, 2)
    assert (changed.workers[1].threads, changed.workers[1].name) == (4, "slow")
    assert changed.model.options == {"num_rows": 1000, "width": 8}
    assert changed.servers == run.servers


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("training.batch", 0, "training.batch is 0"),
        ("training.bach", 1, "training.bach is not a known key"),
        ("worker.7.threads", 1, "worker.7.threads has no entry `7`"),
        ("model.name.first", 1, "model.name.first is not a known key"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_key(key, value, complaint):
    with pytest.raises(SpecError) as caught:
        with_settings(Run(model=RunModel(name="ctr-dnn")), {key: value}, place="flags")

    assert str(caught.value).startswith(f"flags: {complaint}")


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("training.tail=0.1", "training.tail", 0.1),
        ("data.shuffle=false", "data.shuffle", False),
        ("model.options.hidden=[64, 32]", "model.options.hidden", [64, 32]),
        ('data.options.path="a b.tsv"', "data.options.path", "a b.tsv"),
        ("optimizer.name=adam", "optimizer.name", "adam"),
        ("training.batch=1_000", "training.batch", 1000),
    ],
)
def test_values_of_settings_are_toml_and_bare_words_are_text(word, key, value):
    assert parse_setting(word) == (key, value)


def test_a_setting_without_a_value_is_refused():
    with pytest.raises(SpecError, match="sets nothing"):
        parse_setting("training.tail")


def test_a_key_is_found_by_its_last_word():
    assert dotted_key("tail") == "training.tail"
    assert dotted_key("every_steps") == "checkpoint.every_steps"
    assert dotted_key("network") == "network"
    with pytest.raises(SpecError) as caught:
        dotted_key("bach")
    assert "batch" in caught.value.hint


def test_workers_alike_are_counted_and_a_single_one_keeps_its_name():
    run = Run(model=RunModel(name="ctr-dnn"), workers=[RunWorker(name="a", count=2), RunWorker(name="b")])

    assert [name for name, _ in run.each_worker()] == ["a-0", "a-1", "b"]


@pytest.mark.parametrize(
    ("keys", "bits"),
    [
        ({}, 32),
        ({"compression": {"activations": 8}}, 8),
        ({"training": {"activations": "bfloat16"}}, 16),
        ({"training": {"activations": "float32"}, "compression": {"activations": 16}}, 16),
        ({"training": {"activations": "bfloat16"}, "compression": {"activations": 4}}, 4),
    ],
)
def test_the_old_name_of_bits_between_stages_is_still_read(keys, bits):
    assert run_from({"model": {"name": "ctr-dnn"}, **keys}, {}, place="run.toml").activation_bits == bits


BAD_NAMES = [
    "coordinator", "Coordinator", "launcher", "server-0", "SERVER-12", ".", "..", "...", ".hidden", "a/b", "/a", "a\\b",
    "a b", "ä", "x" * 65, "a\n", "a\0",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_worker_is_not_called_what_another_process_or_a_folder_is(name):
    with pytest.raises(SpecError, match="worker has one called") as caught:
        Run(model=RunModel(name="ctr-dnn"), workers=[RunWorker(name=name)])

    assert "name" in caught.value.hint


def test_two_workers_named_server_would_be_called_as_servers_are():
    with pytest.raises(SpecError, match='one called "server-0"'):
        Run(model=RunModel(name="ctr-dnn"), workers=[RunWorker(name="server", count=2)])


@pytest.mark.parametrize("name", ["server", "a", "gpu.0", "server-a", "worker-1", "_", "joined-12", "x" * 64])
def test_other_names_are_a_users_to_choose(name):
    assert Run(model=RunModel(name="ctr-dnn"), workers=[RunWorker(name=name)]).each_worker()[0][0] == name


def test_two_nameless_workers_are_told_of_count():
    with pytest.raises(SpecError) as caught:
        Run(model=RunModel(name="ctr-dnn"), workers=[RunWorker(), RunWorker()])

    assert caught.value.hint == "several alike are one [[worker]] with count = 2; else give each its own name"
