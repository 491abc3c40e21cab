"""The sections of a run file about several sites: which there are, and how they bring each other up to date."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from dovetail.errors import SpecError
from dovetail.spec.checks import check_name, check_number, check_whole_number
from dovetail.spec.run_sections import Meta, Section

ExchangeBits = Literal[32, 16, 8, 4, 2, 1]
SITE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
ADDRESS = re.compile(r"[^\s:/]+:[0-9]{1,5}")


class RunSite(Section, frozen=True):
    """A site: a data centre that trains its part of the data with servers and workers of its own."""

    name: Annotated[str, Meta(description="the site's name")]
    address: Annotated[
        str | None,
        Meta(
            description="HOST:PORT where the others reach its first server, the next at PORT + 1; the first site "
            "needs one, any other may have one, and then gives what it keeps to sites that come back"
        ),
    ] = None
    share: Annotated[int, Meta(description="its part of every batch, against those of the others, at least 1")] = 1

    def __post_init__(self) -> None:
        """Refuse names that are no files', and no share."""
        check_name(self)
        check_whole_number(self, "share", at_least=1)
        if not SITE_NAME.fullmatch(self.name):
            raise SpecError(
                f'is "{self.name}"', key="name", hint="use letters, digits, `_`, `-` and `.`, at most 64 of them"
            )
        if self.address is not None and not ADDRESS.fullmatch(self.address):
            raise SpecError(f'is "{self.address}"', key="address", hint='write HOST:PORT, e.g. "10.0.0.1:7000"')


class RunExchange(Section, frozen=True):
    """How sites bring each other up to date."""

    here: Annotated[str | None, Meta(description="which of the sites this one is; --site says it too")] = None
    every: Annotated[
        int | Literal["auto"],
        Meta(description="steps between two exchanges; auto: as few as hide the transfers, by what is measured"),
    ] = "auto"
    bits: Annotated[
        ExchangeBits, Meta(description="in which a number of what changed travels: 32, 16, 8, 4, 2 or 1")
    ] = 8
    outer_rate: Annotated[float, Meta(description="of the outer optimizer of dense parameters, its learning rate")] = (
        1.0
    )
    outer_momentum: Annotated[float, Meta(description="and Nesterov's momentum, 0 to 1 (not included)")] = 0.0
    ahead: Annotated[
        int, Meta(description="exchanges that may be on their way while training goes on; 0: it waits for each")
    ] = 1
    wait_s: Annotated[float, Meta(description="how long a site that is silent is waited for")] = 30.0
    end_wait_s: Annotated[float, Meta(description="and at the end of training, where the last exchange is due")] = 600.0
    keys: Annotated[str, Meta(description="the folder with the sites' keys, as `dovetail site-keys` makes it")] = (
        "site-keys"
    )

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        if self.every != "auto":
            check_whole_number(self, "every", at_least=1)
        check_number(self, "outer_rate", above=0.0)
        check_number(self, "outer_momentum", at_least=0.0, at_most=0.9999)
        check_whole_number(self, "ahead", at_least=0)
        check_number(self, "wait_s", above=0.0)
        check_number(self, "end_wait_s", above=0.0)
        if self.every == "auto" and self.ahead == 0:
            raise SpecError(
                'is "auto", and ahead is 0: nothing hides a transfer that is waited for',
                key="every",
                hint="set exchange.ahead = 1, or exchange.every to a number of steps",
            )


def portions(sites: Sequence[RunSite], batch: int) -> list[int]:
    """Return each site's part of a batch; refuse one that cannot be divided so."""
    total = sum(site.share for site in sites)
    if any(batch * site.share % total for site in sites):
        raise SpecError(
            f"is {batch}, which {len(sites)} sites cannot share by {':'.join(str(site.share) for site in sites)}",
            key="training.batch",
            hint=f"choose a multiple of {total}, e.g. {max(1, round(batch / total)) * total}",
        )
    return [batch * site.share // total for site in sites]
