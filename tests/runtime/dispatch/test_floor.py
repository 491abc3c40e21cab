"""Nobody's share of a masked step is much below an equal one."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.runtime.dispatch.floor import least_share, with_floor


@given(st.lists(st.integers(0, 5000), min_size=2, max_size=12))
def test_all_samples_are_shared_and_nobody_has_fewer_than_the_least(samples):
    main = {f"worker-{number}": count for number, count in enumerate(samples)}
    least, total = least_share(sum(samples), len(samples)), sum(samples)

    shares = with_floor(main)

    assert list(shares) == list(main)
    assert sum(shares.values()) == total
    if total >= len(samples):
        assert min(shares.values()) >= least
    if total >= 2:
        assert sum(count > 0 for count in shares.values()) >= 2
    for name, count in main.items():
        assert shares[name] >= count or count > least  # only who had more gives


def test_shares_that_are_fair_enough_stay():
    assert with_floor({"a": 70, "b": 130}) == {"a": 70, "b": 130}
    assert with_floor({"a": 0, "b": 200}) == {"a": 25, "b": 175}
    assert with_floor({"a": 0, "b": 2, "c": 0}) == {"a": 1, "b": 1, "c": 0}
    assert with_floor({"a": 0, "b": 1}) == {"a": 0, "b": 1}
