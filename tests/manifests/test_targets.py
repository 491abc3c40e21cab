"""Manifests, as far as readers of theirs from elsewhere can tell."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.errors import SpecError
from dovetail.manifests.target import TARGETS
from dovetail.spec.run import Run, RunData, RunModel, RunValidation
from tests.manifests.makers import RUN_TEXT, make_planned
from tests.test_docs import parse

KUBERNETES = "1.30.0"


def kuberay_documents(**more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    config, job = yaml.safe_load_all(TARGETS["kuberay"].write(make_planned(**more)))
    return config, job


def test_kuberay_asks_for_a_group_of_pods_for_each_type() -> None:
    config, job = kuberay_documents()
    cluster = job["spec"]["rayClusterSpec"]
    cpu, gpu = cluster["workerGroupSpecs"]

    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert config["data"]["run.toml"] == RUN_TEXT
    assert (cpu["replicas"], gpu["replicas"]) == (3, 2)
    assert cpu["template"]["spec"]["nodeSelector"] == {"dovetail/type": "cpu"}
    assert gpu["template"]["spec"]["nodeSelector"] == {"node.kubernetes.io/instance-type": "g5.xlarge"}
    # An instance's pod leaves Kubernetes a core of the four; GPUs are asked for and held to.
    resources = gpu["template"]["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {"cpu": "3", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}


def test_what_kuberay_hands_to_a_shell_is_one_word_of_json() -> None:
    _, job = kuberay_documents()
    gpu = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][1]

    (word,) = shlex.split(gpu["rayStartParams"]["resources"])

    assert json.loads(word) == {"aws:g5.xlarge": 1}
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]
    assert head == {"num-cpus": "0", "num-gpus": "0"}  # or workers of type `cpu` would go there
    assert all(isinstance(value, str) for value in gpu["rayStartParams"].values())


def test_a_cluster_on_kubernetes_ends_with_its_job_and_later_where_the_results_would_go_with_it() -> None:
    _, kept = kuberay_documents(claim="runs")
    _, lost = kuberay_documents()

    assert (kept["spec"]["shutdownAfterJobFinishes"], lost["spec"]["shutdownAfterJobFinishes"]) == (True, True)
    assert kept["spec"]["ttlSecondsAfterFinished"] < lost["spec"]["ttlSecondsAfterFinished"]
    assert "kubectl cp" in TARGETS["kuberay"].write(make_planned())


CODE = {"my_model.py": b"WIDTH = 3\n", "mine/layers.py": b"DEPTH = 2\n"}


def test_own_code_and_data_reach_the_pods() -> None:
    config, job = kuberay_documents(code=CODE, data_claim="clicks")
    cluster = job["spec"]["rayClusterSpec"]
    head = cluster["headGroupSpec"]["template"]["spec"]
    laid = {item["path"]: config["data"].get(item["key"]) for item in head["volumes"][0]["configMap"]["items"]}

    assert laid["my_model.py"] == "WIDTH = 3\n"
    assert laid["mine/layers.py"] == "DEPTH = 2\n"
    assert all(re.fullmatch("[-._a-zA-Z0-9]+", key) for key in config["data"])
    assert job["spec"]["entrypoint"].startswith("cd /dovetail-job && dovetail train run.toml ")
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        pod = group["template"]["spec"]
        assert {"name": "data", "mountPath": "/dovetail-data"} in pod["containers"][0]["volumeMounts"]
        assert {"claimName": "clicks", "readOnly": True} in [
            volume.get("persistentVolumeClaim") for volume in pod["volumes"]
        ]


def test_code_that_a_config_map_cannot_hold_is_refused() -> None:
    with pytest.raises(SpecError, match="a ConfigMap holds 1,048,576") as caught:
        kuberay_documents(code={"large.py": b"#" * (1 << 20)})

    assert "image" in caught.value.hint


@pytest.mark.parametrize("target", TARGETS)
def test_a_manifest_says_how_data_get_there(target: str) -> None:
    run = Run(
        model=RunModel(name="my_model:build"),
        data=RunData(name="/data/clicks.parquet"),
        validation=RunValidation(name="csv", options={"path": ["late.csv", "s3://bucket/later.csv"]}),
    )

    text = TARGETS[target].write(make_planned(run=run, code=CODE))

    assert "every node needs /data/clicks.parquet, at that path" in text
    assert "put late.csv " in text
    assert "later.csv" not in text
    assert "Your own code goes along: my_model.py, mine/layers.py." in text


@pytest.mark.parametrize("claim", [None, "runs"])
def test_pods_and_files_are_what_kubernetes_takes(claim: str | None) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    config, job = kuberay_documents(claim=claim)
    cluster = job["spec"]["rayClusterSpec"]

    validate(config, KUBERNETES, strict=True)
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": group["template"]["spec"]}
        validate(pod, KUBERNETES, strict=True)


def test_every_volume_that_a_pod_mounts_is_there() -> None:
    _, job = kuberay_documents(claim="runs")
    cluster = job["spec"]["rayClusterSpec"]
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        pod = group["template"]["spec"]
        mounted = {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    kept = cluster["headGroupSpec"]["template"]["spec"]["volumes"][1]
    assert kept == {"name": "out", "persistentVolumeClaim": {"claimName": "runs"}}


def test_compose_is_what_a_reader_of_compose_files_takes() -> None:
    reader = pytest.importorskip("compose_spec").PyCompose
    text = TARGETS["compose"].write(make_planned())

    read = reader.from_yaml(text)

    assert sorted(read.service_names()) == ["aws-g5-xlarge", "cpu", "head"]
    gpu = yaml.safe_load(text)["services"]["aws-g5-xlarge"]["deploy"]
    assert gpu["replicas"] == 2
    assert gpu["resources"]["reservations"]["devices"][0]["count"] == 1


def test_compose_starts_the_training_in_a_shell_that_can_read_it(tmp_path: Path) -> None:
    (line,) = yaml.safe_load(TARGETS["compose"].write(make_planned()))["services"]["head"]["command"]
    called = run_with_fakes(tmp_path, line.replace("$$", "$"), nodes=1)

    assert called[-1] == "dovetail train run.toml --plan plan.json --on ray --out run"


def run_with_fakes(folder: Path, script: str, *, nodes: int) -> list[str]:
    """Run a script with programs in the place of Slurm, Ray and Dovetail that write down how they were called."""
    programs = folder / "programs"
    programs.mkdir()
    calls = folder / "calls"
    (programs / "ray").write_text(f'#!/bin/bash\necho "ray $*" >> {calls}\n')
    # The training takes until all nodes have come.
    wait = f'for _ in $(seq 200); do [ $(grep -c "^ray start" {calls}) -ge {nodes} ] && break; sleep 0.1; done'
    (programs / "dovetail").write_text(f'#!/bin/bash\n{wait}\necho "dovetail $*" >> {calls}\n')
    # Slurm's own does no more here than take off its options and run the rest.
    (programs / "srun").write_text(
        f'#!/bin/bash\necho "srun $1" >> {calls}\nshift\n[ "$1" = hostname ] && {{ echo 10.0.0.7; exit; }}\nexec "$@"\n'
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    path = {"PATH": f"{programs}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=path, timeout=250, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    return calls.read_text().splitlines()


def test_the_slurm_script_is_one_that_bash_can_read() -> None:
    script = TARGETS["slurm"].write(make_planned())

    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=250)


def test_slurm_is_asked_for_a_component_for_the_first_node_and_each_type() -> None:
    lines = TARGETS["slurm"].write(make_planned()).splitlines()
    asked = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]

    # 6 GiB over four cores.
    assert asked == [
        "--job-name=my-plan",
        "--nodes=1 --ntasks-per-node=1 --cpus-per-task=4 --mem-per-cpu=1536M",
        "hetjob",
        "--nodes=3 --ntasks-per-node=1 --cpus-per-task=8 --constraint=cpu",
        "hetjob",
        "--nodes=2 --ntasks-per-node=1 --cpus-per-task=4 --gpus-per-node=1 --constraint=aws-g5-xlarge",
    ]
    assert lines[0] == "#!/bin/bash"


@pytest.mark.parametrize("is_there", [False, True])
def test_the_slurm_script_starts_ray_on_every_component_and_then_the_training(tmp_path: Path, is_there: bool) -> None:
    if is_there:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "blueprint.json").touch()

    called = run_with_fakes(tmp_path, TARGETS["slurm"].write(make_planned()), nodes=3)

    assert [line for line in called if line.startswith("srun")].count("srun --het-group=0") == 2
    assert {"srun --het-group=1", "srun --het-group=2"} <= set(called)
    nodes = 'ray start --address=10.0.0.7:6379 --num-cpus=8 --num-gpus=0 --resources={"cpu": 8} --block'
    assert nodes in called
    where = "--resume run" if is_there else "--out run"
    assert f"dovetail train run.toml --plan plan.json --on 10.0.0.7:6379 {where}" in called


def test_skypilot_gets_a_group_of_tasks_that_end_with_the_training() -> None:
    header, head, cpu, gpu = yaml.safe_load_all(TARGETS["skypilot"].write(make_planned()))

    assert header == {"name": "my-plan", "execution": "parallel", "primary_tasks": ["head"]}
    assert (head["num_nodes"], cpu["num_nodes"], gpu["num_nodes"]) == (1, 3, 2)
    assert cpu["resources"]["cpus"] == "8+"
    assert gpu["resources"]["instance_type"] == "g5.xlarge"
    assert "--address=head-0.my-plan:6379" in gpu["run"]
    for task in (head, cpu, gpu):
        subprocess.run(["bash", "-n"], input=task["run"], text=True, check=True, timeout=250)


@pytest.mark.slow  # SkyPilot brings many packages, and is no part of the development set-up
def test_skypilot_itself_reads_the_file(tmp_path: Path) -> None:
    reader, schemas = pytest.importorskip("sky.utils.dag_utils"), pytest.importorskip("sky.utils.schemas")
    path = tmp_path / "sky.yaml"
    # Instances of a cloud would have SkyPilot fetch that cloud's price list; they are held against its schemas alone.
    path.write_text(TARGETS["skypilot"].write(make_planned(("cpu", 0, 1, 3), ("v100", 2, 9, 2))))

    dag = reader.load_job_group_from_yaml(str(path))

    assert dag.is_job_group()
    assert [(task.name, task.num_nodes) for task in dag.tasks] == [("head", 1), ("cpu", 3), ("v100", 2)]
    _, *tasks = yaml.safe_load_all(TARGETS["skypilot"].write(make_planned()))
    for task in tasks:
        pytest.importorskip("jsonschema").validate(task, schemas.get_task_schema())
        pytest.importorskip("jsonschema").validate(task["resources"], schemas.get_resources_schema())


def test_a_unit_of_several_threads_takes_as_many_of_its_node() -> None:
    planned = make_planned(("aws:c7g.4xlarge", 0, 9, 2))

    text = TARGETS["slurm"].write(planned)

    assert '--resources={"aws:c7g.4xlarge": 16}' in text  # a worker with a thread for each of its virtual CPUs


@pytest.mark.parametrize("target", TARGETS)
def test_every_dovetail_command_in_a_manifest_is_one_that_there_is(target: str) -> None:
    text = TARGETS[target].write(make_planned()).replace("$$", "$")
    lines = re.findall(r"\bdovetail (train [^\n\"&]*)", text)

    assert lines
    for line in lines:
        words = shlex.split(re.sub(r"\$\(.*", "--out run", line.replace("$head", "head")))
        parse(words)
