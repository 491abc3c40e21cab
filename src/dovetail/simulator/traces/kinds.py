"""Kinds of models for made-up workloads: what decides how well each scales.

Parameters are the models' published sizes, four bytes each. Seconds a sample on one V100 are rounded from public
single-GPU figures in 32 bits; only the shape of the speed curve depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.cost.speed import SpeedModel

INSIDE_BYTE_S = 1 / 20e9
BETWEEN_BYTE_S = 1 / 10e9
"""Nodes linked at 100 Gb/s, four fifths of it to be had; twice that inside a node."""

REDUCE_BYTE_S = 1 / 200e9
LATENCY_S = 3e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKind:
    """A model: its parameters, its global batch and the seconds one sample takes."""

    name: str
    parameters: float
    batch: int
    sample_s: float
    fixed_s: float = 0.01

    def speed_model(self, *, node_workers: int, pace: float = 1.0) -> SpeedModel:
        """Return how the model's speed depends on workers that compute at `pace` times a V100's."""
        return SpeedModel(
            batch=self.batch,
            sample_s=self.sample_s / pace,
            payload_bytes=4.0 * self.parameters,
            inside_byte_s=INSIDE_BYTE_S,
            between_byte_s=BETWEEN_BYTE_S,
            latency_s=LATENCY_S,
            reduce_byte_s=REDUCE_BYTE_S,
            fixed_s=self.fixed_s,
            node_workers=node_workers,
        )


KINDS = (
    ModelKind(name="resnet110", parameters=1.7e6, batch=512, sample_s=1 / 3500),
    ModelKind(name="mobilenet_v2", parameters=3.5e6, batch=512, sample_s=1 / 900),
    ModelKind(name="inception_v3", parameters=23.8e6, batch=512, sample_s=1 / 260),
    ModelKind(name="resnet50", parameters=25.6e6, batch=1024, sample_s=1 / 390),
    ModelKind(name="resnet101", parameters=44.5e6, batch=512, sample_s=1 / 230),
    ModelKind(name="alexnet", parameters=61e6, batch=2048, sample_s=1 / 3000),
    ModelKind(name="transformer", parameters=65e6, batch=512, sample_s=1 / 450),
    ModelKind(name="bert_base", parameters=110e6, batch=256, sample_s=1 / 110),
    ModelKind(name="vgg16", parameters=138e6, batch=512, sample_s=1 / 230),
)

PACE = {"v100": 1.0, "p100": 0.55, "t4": 0.35, "k80": 0.18, "a100": 2.2}
"""How fast a type computes against a V100, roughly; a type that is not listed counts as a V100."""

BY_NAME = {kind.name: kind for kind in KINDS}
