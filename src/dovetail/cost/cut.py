"""What it costs to cut a model in two: activations travel forward over the cut, gradients back.

A cut between two sites takes the link between them, which all units of a stage share, and pays for its bytes by the
price of the way they leave (egress).
"""

from __future__ import annotations

from dovetail.spec import Link, Problem, SiteLink


def crossing_bytes(problem: Problem, after_layer: int) -> float:
    """Return the bytes of one batch that cross the cut behind layer `after_layer`: every edge over it counts."""
    return sum(
        problem.layers[producer].output_bytes
        for producer, consumer in problem.edges()
        if producer <= after_layer < consumer
    )


def cut_seconds(payload_bytes: float, *, forward: Link, backward: Link, units: int) -> float:
    """Return what a cut adds to the communication of a stage of `units`.

    The payload goes one way and as much comes back, shared by the stage's own units:

        payload / forward_bandwidth / k + forward_latency + payload / backward_bandwidth / k + backward_latency

    which is `2 payload / bandwidth / k + 2 latency` on a link that is the same both ways.
    """
    return sum(payload_bytes / link.bytes_per_s / units + link.latency_s for link in (forward, backward))


def site_cut_seconds(payload_bytes: float, *, forward: SiteLink, backward: SiteLink) -> float:
    """Return what a cut between two sites adds to the communication of a stage, however many units it has.

    payload / forward_bandwidth + forward_latency + payload / backward_bandwidth + backward_latency
    """
    return sum(payload_bytes / link.bytes_per_s + link.latency_s for link in (forward, backward))


def egress_usd(payload_bytes: float, *, forward: SiteLink, backward: SiteLink) -> float:
    """Return what a batch pays at a cut between two sites: activations the way there, gradients the way back."""
    return payload_bytes * (forward.price_per_byte + backward.price_per_byte)
