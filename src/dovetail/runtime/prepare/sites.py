"""A run that is one of several sites: its part of the data, and the keys that sites know each other by."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from dovetail.runtime.blueprint import Portion, portions_of
from dovetail.runtime.errors import TrainingError
from dovetail.spec.run import Run
from dovetail.transport import KeyRing, KeyRingError, make_keys


def portion_of(run: Run, samples: int, batch: int) -> Portion | None:
    """Return which of the data are this site's; None where there are no sites. Its keys must be there."""
    if not run.sites:
        return None
    names = [site.name for site in run.sites]
    if run.exchange.here is None:
        raise TrainingError(f"the run has the sites {', '.join(names)}", hint=f"say which this is: --site {names[0]}")
    _check_keys(run, names)
    own = portions_of(run.sites, samples, batch)[names.index(run.exchange.here)]
    if not own.own_samples:
        raise TrainingError(
            f"of {samples} samples in batches of {batch}, site `{run.exchange.here}` has none",
            hint="give it a larger share, or the run more samples",
        )
    return own


def _check_keys(run: Run, names: Sequence[str]) -> None:
    """Refuse to start without the keys of this site and the public ones of the others."""
    folder, here = Path(run.exchange.keys), str(run.exchange.here)
    try:
        ring = KeyRing(folder)
        ring.own(here)
        for name in names:
            ring.public(name)
    except (KeyRingError, OSError) as error:
        raise TrainingError(
            f"the keys of the sites cannot be read: {error}",
            hint=f"make them once, with `dovetail site-keys RUN.toml`, and bring the folder {folder} to every site",
        ) from None


def check_address(run: Run) -> None:
    """Refuse to start where the other sites could not call: a server would find out again and again."""
    name, num_servers = run.exchange.here, run.servers.count
    address = next((site.address for site in run.sites if site.name == name), None)
    if address is None:
        return
    host, _, port = address.rpartition(":")
    for number in range(num_servers):
        try:
            socket.create_server((host, int(port) + number)).close()
        except (OSError, OverflowError) as error:
            raise TrainingError(
                f"site `{name}` cannot listen at {host}:{int(port) + number}: {error}",
                hint="its address is one of this machine's, with a port that nobody has, for each server the next one",
            ) from None


def make_site_keys(run: Run, folder: Path) -> list[str]:
    """Make a pair of keys for every site that has none; return for whom."""
    missing = [site.name for site in run.sites if not (folder / f"{site.name}.public").exists()]
    for name in missing:
        make_keys(folder, name)
    return missing
