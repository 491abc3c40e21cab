"""`dovetail privacy`: what noise a budget needs and what it costs, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dovetail.cli.options import AsJson
from dovetail.cli.output import errors_shown, print_line

if TYPE_CHECKING:
    from dovetail.privacy.planning import PrivacyBudget


def privacy(
    samples: Annotated[int, typer.Option(help="Samples of the data.")],
    batch: Annotated[int, typer.Option(help="Samples that a step draws on average.")],
    delta: Annotated[float, typer.Option(help="How likely the promise may fail; well below 1 / samples.")],
    epochs: Annotated[int, typer.Option(help="How often the data are seen.")] = 1,
    epsilon: Annotated[float | None, typer.Option(help="The budget.")] = None,
    noise: Annotated[
        float | None, typer.Option(help="Noise in a step's sum, in clips: what it spends, or how long epsilon lasts.")
    ] = None,
    accountant: Annotated[
        Literal["pld", "rdp"], typer.Option(help="How what is spent is counted: pld, or rdp (never less).")
    ] = "pld",
    as_json: AsJson = False,
) -> None:
    """Say what noise a privacy budget needs and what it costs, or what some noise spends."""
    with errors_shown(as_json=as_json):
        from dovetail.privacy.planning import budget

        found = budget(
            samples=samples,
            batch=batch,
            epochs=epochs,
            delta=delta,
            epsilon=epsilon,
            noise=noise,
            accountant=accountant,
        )
        if as_json:
            import msgspec

            print_line(msgspec.json.encode({**msgspec.to_builtins(found), "lasts": found.lasts}).decode())
            return
        for line in _lines(found):
            print_line(line)


def _lines(found: PrivacyBudget) -> list[str]:
    """Return what a person reads."""
    lines = [
        f"noise {found.noise:.4g}: a step's sum of gradients gets noise of {found.noise:.4g} clips, "
        f"the mean gradient {found.mean_noise:.2g}",
        f"{found.steps:,} steps, each with every sample by a chance of {found.rate:.4g}, spend epsilon "
        f"{found.epsilon:.4g} at delta {found.delta:g} ({found.accountant})",
    ]
    if not found.lasts:
        lines.append(
            f"the budget of {found.budget:g} is spent then: {found.planned_steps:,} steps were planned; more noise, "
            "fewer epochs, or a larger epsilon"
        )
    if found.steps:
        on_the_way = ", ".join(f"{epsilon:.3g} after {epochs:.3g}" for epochs, epsilon in found.after_epochs())
        lines.append(f"spent by epochs: {on_the_way}")
    return lines
