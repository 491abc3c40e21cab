"""The ten architectures of `benchmarks/models.py`: their tasks are told by labels and answers alone."""

import sys
from pathlib import Path

import pytest
import torch

from dovetail.models import as_whole
from dovetail.runtime.model.dry_run import dry_run

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from architectures import CLASSES, Images, Sequences, architectures

sys.path.pop(0)
CLASSIFIERS = ("ResNet-like", "MLP-mixer")


@pytest.mark.parametrize("each", architectures(), ids=lambda each: each.name)
def test_the_task_of_an_architecture_is_found(each):
    task = dry_run(as_whole(each.build()), each.source, samples=2000, loss=None)

    expected = ("cross-entropy", ("accuracy",)) if each.name in CLASSIFIERS else ("logistic", ("auc",))
    assert (task.loss, task.metrics) == expected


def test_samples_depend_on_their_number_alone():
    for source in (Sequences(), Images()):
        whole, part = source.read(0, 50), source.read(20, 30)
        assert torch.equal(whole.slice(20, 30).labels, part.labels)
        assert torch.equal(whole.slice(20, 30).dense, part.dense)
        assert torch.equal(whole.slice(20, 30).ids, part.ids)
    labels = Images().read(0, 4000).labels
    assert torch.bincount(labels.long(), minlength=CLASSES).min() > 800
