"""What rounding adds to what one sample changes is taken off its clip."""

import math

import msgspec
import numpy as np
import pytest

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.masking.fixed_point import FixedPoint
from dovetail.runtime.masking.rounding import clip_before_rounding, most_members
from dovetail.spec.privacy import RunPrivacy
from tests.runtime.runs import make_run

CLIP = 0.5


class Plan:
    """What the rule looks at of a blueprint."""

    def __init__(self, *, batch, numbers, aggregation="masked", workers=2):
        privacy = RunPrivacy(epsilon=3.0, delta=1e-5, clip=CLIP, aggregation=aggregation)
        self.run = msgspec.structs.replace(make_run(workers=workers), privacy=privacy)
        self.batch, self.dense_size, self.tables = batch, numbers, ()

    @property
    def mask_reach(self):
        return CLIP * self.batch


@pytest.mark.parametrize(("batch", "numbers"), [(100, 50), (5000, 4000), (100_000, 400)])
def test_a_sample_changes_the_rounded_sum_by_clip_at_most(batch, numbers):
    plan, random = Plan(batch=batch, numbers=numbers), np.random.default_rng(batch)
    clip, fixed = clip_before_rounding(plan, CLIP), FixedPoint(plan.mask_reach, most_members(plan))
    assert clip == pytest.approx(CLIP - fixed.unit * math.sqrt(numbers))

    for _ in range(50):
        others = random.normal(size=numbers).astype(np.float32)
        sample = random.normal(size=numbers)
        sample *= clip / np.linalg.norm(sample)
        with_it, without = np.zeros(numbers, dtype=np.uint32), np.zeros(numbers, dtype=np.uint32)
        fixed.add_to(with_it, (others + sample).astype(np.float32))
        fixed.add_to(without, others)
        change = (with_it - without).view(np.int32).astype(np.float64) * fixed.unit
        assert np.linalg.norm(change) <= CLIP * (1 + 1e-6)


def test_plain_sums_are_not_rounded_and_too_coarse_ones_are_refused():
    assert clip_before_rounding(Plan(batch=100, numbers=50, aggregation="plain"), CLIP) == CLIP
    with pytest.raises(TrainingError, match=r"of privacy\.clip"):
        clip_before_rounding(Plan(batch=1_000_000, numbers=10_000_000), CLIP)
