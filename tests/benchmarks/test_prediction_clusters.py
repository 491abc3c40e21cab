"""Predictions of whole plans: by hand on a made-up cluster, and against the measured ones where the data is at hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DATA = os.environ.get("DOVETAIL_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="DOVETAIL_DATA is not set")


@pytest.fixture
def profiles(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cluster_profiles

    return cluster_profiles


@pytest.fixture
def data(tmp_path):
    """A model of two layers on `fast` and `slow`: 1 + 2 and 2 + 4 s a layer; 2 and 1 GB/s; 1 GB each way and layer."""
    return write_data(tmp_path, num_layers=2, micro_batch_bytes=1e9, bytes_per_s=1e9)


def write_data(tmp_path, *, num_layers, micro_batch_bytes, bytes_per_s):
    """A data folder with one model: a micro-batch of 4, on GPUs `slow`, and `fast` that are twice as fast in all."""
    folder = tmp_path / "data" / "sailor"
    (folder / "profiles" / "toy").mkdir(parents=True)
    layers = [str(layer) for layer in range(num_layers)]
    for gpu, factor in (("fast", 1.0), ("slow", 2.0)):
        layer = [1.0 * factor, 2.0 * factor, 0.5]
        profile = {"4": {"2": dict.fromkeys(layers, layer)}}
        (folder / "profiles" / "toy" / f"{gpu}.json").write_text(json.dumps(profile))
    size = {"params_bytes": bytes_per_s, "act_output_bytes": micro_batch_bytes / 4}
    (folder / "llm_info.json").write_text(json.dumps({"toy": {"2": dict.fromkeys(layers, size)}}))
    rate = bytes_per_s / 1e9
    curves = {"fast": {"1": [[0, 0, 2 * rate], 9e9]}, "slow": {"1": [[0, 0, rate], 9e9]}}
    (folder / "network_coeffs_all_homo.json").write_text(json.dumps({"inter": curves, "intra": {}}))
    return tmp_path / "data"


def plan_of(layers, replicas, **fields):
    """A plan file's content; a replica is its GPU type, always with two GPUs."""
    stages = [[[[[gpu, 2, "zone"]], 2] for gpu in stage] for stage in replicas]
    return {"pipeline_list": [{"layers_per_stage": layers, "tmp_per_stage": stages}], "mbs": 4, "gbs": 16} | fields


def predict(data, tmp_path, *plans, status=0):
    """What the command prints last for plans named plan0, plan1, ..."""
    folder = tmp_path / "plans"
    folder.mkdir(exist_ok=True)
    for number, plan in enumerate(plans):
        (folder / f"plan{number}.json").write_text(json.dumps(plan))
    command = [sys.executable, BENCHMARKS / "prediction.py", "--part", "clusters", "--json"]
    done = subprocess.run(
        [*command, "--data", data, "--plans", folder], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["rows"]


def test_a_pipeline_is_paced_by_computation_and_its_slower_link(data, tmp_path):
    [row] = predict(data, tmp_path, plan_of([[0], [1]], [["fast"], ["slow"]], real=40.0))

    # 4 micro-batches of 1 GB over 1 GB/s: the slow stage takes 6 + 2 s, 3 times, after 3 + 6 + 2; then it updates.
    assert row["predicted"] == pytest.approx(3 * 8 + 11 + 0.5)
    assert row["simple"] == pytest.approx(3 * 6 + 9)
    assert row["error"] == pytest.approx(35.5 / 40 - 1)


def test_replicas_wait_for_the_slowest_and_for_the_ring(data, tmp_path):
    [row] = predict(data, tmp_path, plan_of([[0, 1]], [["fast", "slow"]]))

    # 2 micro-batches of 12 s on the slow one; two replicas exchange 2 GPUs x 2 GB over 1 GB/s; two updates.
    assert row["predicted"] == pytest.approx(24 + 4 + 1)
    assert row["measured"] is None
    assert row["error"] is None


def test_chains_do_not_mix_one_chains_link_with_anothers_gpus(data, tmp_path):
    [row] = predict(data, tmp_path, plan_of([[0], [1]], [["fast", "slow"], ["fast", "slow"]]))

    # The slow chain: 2 micro-batches, 6 + 2 s once more after 6 + 6 + 2; a ring of 2 x 1 GB at 1 GB/s; an update.
    assert row["predicted"] == pytest.approx(8 + 14 + 2 + 0.5)


def test_a_slow_replica_computes_while_small_messages_cross_the_last_cut(tmp_path):
    # Two GPUs send 4 MB each, which fit their buffers; 8 MB take 2 s on the slow node's link.
    data = write_data(tmp_path, num_layers=3, micro_batch_bytes=8e6, bytes_per_s=4e6)
    [row] = predict(data, tmp_path, plan_of([[0, 1], [2]], [["slow", "fast"], ["fast", "slow"]]))

    # The chain slow, fast: 2 micro-batches of 12 s, as what the fast one needs, 3 + 2 x 2 s, is over before; the last
    # one is back 3 + 4 s later. Ring of 2 GPUs x 8 MB at 4 MB/s, and two updates.
    assert row["predicted"] == pytest.approx(2 * 12 + 3 + 4 + 4 + 1)


def test_messages_that_are_large_or_do_not_cross_the_last_cut_hold_both_sides(tmp_path):
    data = write_data(tmp_path, num_layers=3, micro_batch_bytes=9e6, bytes_per_s=4.5e6)
    two = plan_of([[0, 1], [2]], [["slow"], ["fast"]])
    three = plan_of([[0], [1], [2]], [["slow"], ["fast"], ["fast"]], mbs=2, gbs=8)
    large, middle = predict(data, tmp_path, two, three)

    # 4.5 MB a GPU are more than 4 MiB: 3 x (12 + 4) s after 12 + 3 + 4, and two updates.
    assert large["predicted"] == pytest.approx(3 * 16 + 19 + 1)
    # Half as much fits, but the first cut is not the last: 6 + 2 s, and 1 + 1 s at the fast ones' cut; an update.
    assert middle["predicted"] == pytest.approx(3 * 8 + 12 + 2 + 1 + 0.5)


def test_the_answers_are_not_looked_at(data, tmp_path):
    plan = plan_of([[0], [1]], [["fast"], ["slow"]])
    rows = predict(data, tmp_path, plan, plan | {"real": 1.0, "red_grads": 1e6})

    assert rows[0]["predicted"] == rows[1]["predicted"]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"mbs": 1, "gbs": 1}, "pipeline_list"),
        ({"pipeline_list": [], "mbs": 1, "gbs": 1}, "pipeline_list is empty"),
        (plan_of([[0, 1]], [["fast"]], mbs="two"), "mbs"),
        (plan_of([[0, 1]], [["fast"]], mbs=0), "mbs is 0"),
        (plan_of([[0]], [["fast"]], model="toy"), "2 layers of `toy`"),
        (plan_of([[0]], [["fast"]]), "which model has 1 layers"),
        (plan_of([[0, 1]], [["fats"]]), "did you mean `fast`"),
        (plan_of([[0, 1]], [["fast"]], model="toi"), "did you mean `toy`"),
        (plan_of([[0], [1]], [["fast"]]), "tmp_per_stage has 1 stages"),
        (plan_of([[0, 1]], [[]]), "give every stage its replicas"),
    ],
)
def test_a_plan_that_cannot_be_predicted_says_why_beside_those_that_can(data, tmp_path, plan, reason):
    rows = predict(data, tmp_path, plan, plan_of([[0, 1]], [["fast"]]), status=1)

    assert reason in rows[0]["refused"]
    assert rows[1]["predicted"] == pytest.approx(4 * 6 + 1)


def test_a_smaller_micro_batch_never_takes_longer(profiles):
    times = {1: 9.0, 2: 4.0, 4: 6.0, 8: 10.0}

    assert [profiles.monotone_seconds(times, size) for size in (1, 2, 3, 4, 6, 8, 16)] == [4, 4, 5, 6, 8, 10, 20]


def test_a_link_is_as_fast_as_its_curve_says_up_to_its_peak(profiles):
    curve = ((-1.0, 4.0, 2.0), 5e9)

    # 2 MB: -1 + 4 + 2 = 5 GB/s. The parabola peaks at x = 2 with 6, more than was ever measured.
    assert profiles.curve_bytes_per_s(curve, 2e6) == pytest.approx(5e9)
    assert profiles.curve_bytes_per_s(curve, 1e12) == pytest.approx(5e9)
    assert profiles.curve_bytes_per_s(curve, 10.0) == pytest.approx(2e9)


def test_without_data_the_way_out_is_named():
    environment = {name: value for name, value in os.environ.items() if name != "DOVETAIL_DATA"}
    command = [sys.executable, BENCHMARKS / "prediction.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, env=environment)

    assert done.returncode == 1
    assert "hint: set it to the folder of measured data" in done.stderr


@needs_data
def test_measured_plans_are_predicted_to_a_few_percent():
    command = [sys.executable, BENCHMARKS / "prediction.py", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    groups = json.loads(done.stdout.splitlines()[-1])["groups"]

    assert groups["mit"]["median_error"] <= 0.12
    assert groups["clariden"]["median_error"] <= 0.10


@needs_data
@pytest.mark.parametrize(
    ("model", "num_layers", "gpu", "degree"),
    [("OPT-30", 50, "V100-16", 8), ("LLAMA-3-8", 35, "GH-96", 4), ("GPT-Neo-2.7", 34, "A100-80", 2)],
)
def test_other_models_and_gpus_of_the_profiles_can_be_predicted(tmp_path, model, num_layers, gpu, degree):
    half = num_layers // 2
    layers = [list(range(half)), list(range(half, num_layers))]
    replica = [[[gpu, degree, "zone"]], degree]
    pipeline = {"layers_per_stage": layers, "tmp_per_stage": [[replica, replica], [replica, replica]]}
    [row] = predict(DATA, tmp_path, {"pipeline_list": [pipeline], "mbs": 1, "gbs": 32, "N": 4})

    # Communication only adds; the profile's repair only takes away, and here there is none.
    assert row["simple"] < row["predicted"] < 3 * row["simple"]
