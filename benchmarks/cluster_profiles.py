"""Profiles of layers, sizes and bandwidths that were measured on real clusters, as the data folder has them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from dovetail.errors import DovetailError, did_you_mean

MEGABYTE = 1e6
SMALLEST_MESSAGE_BYTES = 1e6
"""Below this size the curves of the links were not measured; its rate is used."""

Curve = tuple[tuple[float, float, float], float]
"""a, b, c of a link's rate, and the highest rate measured, bytes/s."""


class Sources:
    """The profiles, sizes and bandwidths of the data folder, each read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.profiles: dict[Path, dict[int, dict[str, dict[str, list[float]]]]] = {}
        if not (folder / "profiles").is_dir():
            raise DovetailError(f"{folder} has no profiles", hint="set DOVETAIL_DATA to the folder that has `sailor`")
        self.models = sorted(path.name for path in (folder / "profiles").iterdir())
        self.sizes: dict[str, Any] = json.loads((folder / "llm_info.json").read_text())
        self.links: dict[str, Any] = json.loads((folder / "network_coeffs_all_homo.json").read_text())

    def profile(self, model: str, gpu: str) -> dict[int, dict[str, dict[str, list[float]]]]:
        """Return {micro-batch: {tensor-parallel degree: {layer: [forward_s, backward_s, update_s]}}}."""
        path = self.folder / "profiles" / model / f"{gpu}.json"
        if not path.exists():
            known = sorted(other.stem for other in path.parent.glob("*.json"))
            raise DovetailError(f"`{model}` was not profiled on `{gpu}`", hint=did_you_mean(gpu, known))
        if path not in self.profiles:
            self.profiles[path] = {int(size): degrees for size, degrees in json.loads(path.read_text()).items()}
        return self.profiles[path]

    def layer_seconds(self, model: str, gpu: str, degree: int, micro_batch: int, layer: int) -> tuple[float, float]:
        """Return forward + backward, and update, of a layer."""
        profile = self.profile(model, gpu)
        times = {size: degrees[str(degree)][str(layer)] for size, degrees in profile.items() if str(degree) in degrees}
        if not times:
            known = sorted({int(known) for degrees in profile.values() for known in degrees})
            raise DovetailError(
                f"`{model}` on `{gpu}` was not profiled with tensor parallelism {degree}", hint=f"profiled: {known}"
            )
        seconds = sum(
            monotone_seconds({size: time[part] for size, time in times.items()}, micro_batch) for part in (0, 1)
        )
        nearest = min(times, key=lambda size: abs(size - micro_batch))
        return seconds, times[nearest][2]

    def profiled_seconds(self, model: str, gpu: str, degree: int, micro_batch: int, layer: int) -> float:
        """Return forward + backward of a layer as profiled, without any repair, where that very case was."""
        times = self.profile(model, gpu).get(micro_batch, {}).get(str(degree))
        if times is None:
            return self.layer_seconds(model, gpu, degree, micro_batch, layer)[0]
        return times[str(layer)][0] + times[str(layer)][1]

    def parameter_bytes(self, model: str, degree: int, layer: int) -> float:
        """Return what one GPU of a tensor-parallel group holds of a layer."""
        sizes = self.sizes[model]
        known = str(degree) if str(degree) in sizes else min(sizes, key=int)
        return float(sizes[known][str(layer)]["params_bytes"]) * int(known) / degree

    def output_bytes(self, model: str, layer: int) -> float:
        """Return what a layer hands on for one sample."""
        sizes = self.sizes[model]
        return float(sizes[min(sizes, key=int)][str(layer)]["act_output_bytes"])

    def bytes_per_s(self, gpu: str, *, num_links: int, message_bytes: float, inside_node: bool) -> float:
        """Return what `num_links` GPUs of a node reach together, each with messages of `message_bytes`."""
        curves = self.links["intra" if inside_node else "inter"].get(gpu)
        if curves is None:
            raise DovetailError(f"no bandwidth of `{gpu}` is known", hint=did_you_mean(gpu, self.links["inter"]))
        counts = sorted(map(int, curves))
        count = max((known for known in counts if known <= num_links), default=counts[0])
        return curve_bytes_per_s(curves[str(count)], message_bytes)


def monotone_seconds(times: dict[int, float], micro_batch: int) -> float:
    """Return what a micro-batch takes, from profiled ones: never longer than a larger one.

    A size between two is interpolated on a line; one above the largest takes its share more.
    """
    sizes = sorted(times)
    if micro_batch > sizes[-1]:
        return times[sizes[-1]] * micro_batch / sizes[-1]
    above = min(size for size in sizes if size >= micro_batch)
    seconds_above = min(times[size] for size in sizes if size >= above)
    below = max((size for size in sizes if size < micro_batch), default=above)
    if above in (micro_batch, below):
        return seconds_above
    seconds_below = min(times[size] for size in sizes if size >= below)
    return seconds_below + (seconds_above - seconds_below) * (micro_batch - below) / (above - below)


def curve_bytes_per_s(curve: Curve, message_bytes: float) -> float:
    """Return the rate of a link for messages of one size: it does not fall as they grow, nor beat what was measured."""
    (a, b, c), highest = curve
    x = math.log2(max(message_bytes, SMALLEST_MESSAGE_BYTES) / MEGABYTE)
    if a < 0:
        x = min(x, -b / (2 * a))
    return min(1e9 * (a * x * x + b * x + c), highest)
