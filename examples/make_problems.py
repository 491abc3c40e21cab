"""Write the four example problems beside this script: click models on CPU cores and V100 GPUs.

    python examples/make_problems.py

The times are modelled, not measured, from each layer's arithmetic and the bytes it touches, at round figures for one
CPU core and one V100. An embedding's rows live in host memory: a GPU pulls them over its bus, a core reads them where
they are. `dovetail profile` measures such a file instead of modelling it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dovetail.spec import Layer, LayerTime, Link, Problem, ResourceType, Training, write_problem
from dovetail.spec.layer import LayerKind

BATCH = 4096
CRITEO_SAMPLES = 45_840_617
FLOAT_BYTES = 4


class Unit(NamedTuple):
    """What one unit can do, sustained."""

    flops_per_s: float
    memory_bytes_per_s: float
    rows_per_s: float  # random embedding rows, read and updated
    row_bytes_per_s: float  # the way from the rows to the unit
    network_bytes_per_s: float
    overhead_s: float  # per layer and batch


CPU_CORE = Unit(4.0e10, 1.0e10, 2.0e7, 1.0e10, 12.5e9, 2e-5)
V100 = Unit(1.0e13, 7.0e11, 1.0e9, 2.5e9, 12.5e9, 4e-5)


class Shape(NamedTuple):
    """One layer: floats in and out of it per sample, its weights, and the embedding rows it reads per sample."""

    name: str
    kind: LayerKind
    floats_in: int
    floats_out: int
    weights: int = 0
    rows: int = 0
    repeats: int = 1  # how often a sample passes through, as the candidates of a matching model do
    after: tuple[str, ...] | None = None


def fc(name: str, floats_in: int, floats_out: int, repeats: int = 1) -> Shape:
    """Return a fully connected layer."""
    return Shape(name, "fc", floats_in, floats_out, floats_in * floats_out + floats_out, repeats=repeats)


def rows(name: str, slots: int, width: int, height: int, after: tuple[str, ...] | None = None) -> Shape:
    """Return an embedding of `slots` slots over one table."""
    return Shape(name, "embedding", slots, slots * width, height * width, rows=slots, after=after)


def pointwise(name: str, kind: LayerKind, floats: int, out: int | None = None, **more: tuple[str, ...]) -> Shape:
    """Return a layer that touches every float once."""
    return Shape(name, kind, floats, floats if out is None else out, after=more.get("after"))


def layer_time(shape: Shape, unit: Unit) -> LayerTime:
    """Return the seconds of forward, backward and update: three passes over weights and activations."""
    passes = 3 * BATCH * shape.repeats
    flops = passes * 2 * shape.weights if shape.kind == "fc" else passes * shape.floats_in
    touched_bytes = passes * (shape.floats_in + shape.floats_out) * FLOAT_BYTES
    compute_s = max(flops / unit.flops_per_s, touched_bytes / unit.memory_bytes_per_s)
    comm_s = 0.0
    if shape.rows:
        compute_s = touched_bytes / unit.memory_bytes_per_s + BATCH * shape.rows / unit.rows_per_s
        comm_s = 2 * BATCH * shape.floats_out * FLOAT_BYTES / unit.row_bytes_per_s
    elif shape.weights:
        comm_s = 2 * shape.weights * FLOAT_BYTES / unit.network_bytes_per_s
    return LayerTime(
        compute_s=round(compute_s + unit.overhead_s, 9),
        comm_s=round(comm_s, 9),
        compute_parallel=0.999 if shape.rows else 0.995,
        comm_parallel=0.99 if shape.rows else 0.3,  # a ring moves all weights, however many share it
    )


CTR_DNN = [
    rows("embedding", 26, 16, 26_000_000),
    pointwise("pooling", "other", 416),
    pointwise("dense_norm", "norm", 13),
    pointwise("concat", "concat", 429),
    fc("fc1", 429, 1024),
    pointwise("relu1", "activation", 1024),
    fc("fc2", 1024, 1024),
    pointwise("relu2", "activation", 1024),
    fc("fc3", 1024, 1024),
    pointwise("relu3", "activation", 1024),
    fc("fc4", 1024, 512),
    pointwise("relu4", "activation", 512),
    fc("fc5", 512, 2),
    pointwise("softmax", "activation", 2),
    pointwise("cross_entropy", "loss", 2, 1),
    pointwise("mean", "other", 1),
]
MATCHNET = [
    rows("user_embedding", 12, 16, 12_000_000, after=()),
    pointwise("user_pooling", "other", 192),
    fc("user_fc1", 192, 400),
    pointwise("user_relu1", "activation", 400),
    fc("user_fc2", 400, 400),
    pointwise("user_relu2", "activation", 400),
    fc("user_fc3", 400, 50),
    rows("item_embedding", 14 * 21, 16, 14_000_000, after=()),  # one clicked item and 20 negatives
    pointwise("item_pooling", "other", 21 * 237),
    fc("item_fc1", 237, 400, repeats=21),
    pointwise("item_relu1", "activation", 400 * 21),
    fc("item_fc2", 400, 400, repeats=21),
    pointwise("item_relu2", "activation", 400 * 21),
    fc("item_fc3", 400, 50, repeats=21),
    pointwise("cosine", "other", 50 * 22, 21, after=("user_fc3", "item_fc3")),
    pointwise("hinge", "loss", 21, 1),
]
TWO_EMBEDDINGS = [
    rows("embedding", 26, 10, 26_000_026, after=()),
    fc("fc1", 273, 400),
    fc("fc2", 400, 400),
    fc("fc3", 400, 50),
    rows("small_embedding", 5, 10, 100, after=()),
    fc("small_fc", 50, 128),
    pointwise("concat", "concat", 178, after=("fc3", "small_fc")),
    fc("fc4", 178, 2),
    fc("fc5", 2, 2),
    pointwise("cross_entropy", "loss", 2, 1),
]
NCE = [
    rows("context_embedding", 10, 64, 10_000_000),
    pointwise("mean", "other", 640, 64),
    rows("output_embedding", 26, 64, 10_000_000),
    pointwise("dot", "other", 26 * 64, 26),
    pointwise("nce_loss", "loss", 26, 1),
]
MODELS = {
    "ctr-dnn": (CTR_DNN, 2_000_000.0),
    "matchnet": (MATCHNET, 400_000.0),
    "2emb": (TWO_EMBEDDINGS, 2_000_000.0),
    "nce": (NCE, 1_000_000.0),
}


def problem_of(shapes: list[Shape], min_samples_per_s: float) -> Problem:
    """Return the problem of a model on 960 CPU cores and 32 V100, joined by 100 Gb/s."""
    return Problem(
        training=Training(samples=CRITEO_SAMPLES, batch=BATCH, min_samples_per_s=min_samples_per_s),
        resources=(
            ResourceType(name="cpu", kind="cpu", price_per_hour=0.04, limit=960),
            ResourceType(name="v100", kind="gpu", price_per_hour=2.42, limit=32),
        ),
        layers=tuple(
            Layer(
                name=shape.name,
                kind=shape.kind,
                input_bytes=BATCH * shape.floats_in * shape.repeats * FLOAT_BYTES,
                weight_bytes=shape.weights * FLOAT_BYTES,
                output_bytes=BATCH * shape.floats_out * shape.repeats * FLOAT_BYTES,
                after=shape.after,
                on={"cpu": layer_time(shape, CPU_CORE), "v100": layer_time(shape, V100)},
            )
            for shape in shapes
        ),
        links=(Link(source="cpu", target="v100", bytes_per_s=12.5e9, latency_s=5e-5),),
    )


def main() -> None:
    """Write one file a model."""
    folder = Path(__file__).parent / "problems"
    folder.mkdir(exist_ok=True)
    for name, (shapes, floor) in MODELS.items():
        write_problem(problem_of(shapes, floor), folder / f"{name}.toml")
        print(folder / f"{name}.toml")


if __name__ == "__main__":
    main()
