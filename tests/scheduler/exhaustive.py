"""The least sum of completion times by exhaustive search: every allocation at every completion."""

from functools import cache


def allocations(curves, there, room):
    """Yield for the jobs of `there` every tuple of sizes that fits; 0 = it waits."""
    if not there:
        yield ()
        return
    head, *rest = there
    for size in (0, *curves[head]):
        if size <= room:
            for others in allocations(curves, rest, room - size):
                yield (size, *others)


def least_sum_of_completions(curves, left, capacity):
    """Return the least sum of completion times of jobs that are all there, without restarts, deciding at completions.

    Between two completions nothing new is known, so an optimal schedule of this kind changes only there.
    """
    ways = {}

    def choices(there):
        if there not in ways:
            every = [way for way in allocations(curves, list(there), capacity) if any(way)]
            speeds = {tuple(curves[job].get(size, 0.0) for job, size in zip(there, way, strict=True)) for way in every}
            ways[there] = [one for one in speeds if not any(_below(one, other) for other in speeds)]
        return ways[there]

    @cache
    def least(there, remaining):
        if not there:
            return 0.0
        best = float("inf")
        for speeds in choices(there):
            until = min(work / speed for work, speed in zip(remaining, speeds, strict=True) if speed > 0)
            after = [work - speed * until for work, speed in zip(remaining, speeds, strict=True)]
            kept = [place for place, work in enumerate(after) if work > 1e-9 * remaining[place]]
            rest = least(tuple(there[place] for place in kept), tuple(round(after[place], 9) for place in kept))
            best = min(best, len(there) * until + rest)
        return best

    return least(tuple(range(len(curves))), tuple(float(work) for work in left))


def _below(one, other):
    """Say whether another choice is as fast for everybody and faster for somebody."""
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))
