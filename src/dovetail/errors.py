"""What can go wrong, as a tree.

    DovetailError               everything a user can put right; carries a hint
    ├── SpecError               a description is wrong; names the key, and the file where there is one
    ├── PlanError               a plan does not fit its problem, or a method cannot make one
    │   └── NoPlanError         proven: no plan can meet the demands
    ├── DataError               training data cannot be read or make no sense (dovetail.data)
    │   └── BadRowsError        more rows are broken than were allowed
    ├── TableError              a request that a table cannot meet (dovetail.embedding)
    │   ├── DamagedFileError    a file is not what was written
    │   └── StorageError        the disk refused
    ├── ModelError              a model cannot be built, divided or trained (dovetail.models)
    ├── EncryptionError         a key is missing or wrong, or a file not encrypted (dovetail.encryption)
    ├── LinkError               a link cannot be measured (dovetail.profiler)
    ├── TrainingError           a training run cannot start or go on (dovetail.runtime)
    ├── WireError               bytes between processes are not a message
    ├── PeerLost                a process did not answer in time
    ├── KeyRingError            a key is missing, broken or readable by others
    ├── ListenError             an address cannot be listened at
    ├── LimitError              a limit on processes cannot be set here (dovetail.cgroups)
    ├── ForkServerEnded         the process that starts others ended (dovetail.runtime)
    ├── GroupBroken             another worker that owns rows is gone (dovetail.runtime)
    ├── HostProblem             a machine cannot be used for a run (dovetail.runtime)
    ├── UnknownJobError         nobody submitted such a job (dovetail.serve)
    ├── UnknownThingError       nothing of such a name was given to the page (dovetail.dashboard)
    ├── NotNowError             a job cannot be started now, and may be later (dovetail.serve)
    └── MissingExtraError       an optional dependency is not installed

Each says what is wrong, with the values, and the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_LISTED = 12
"""How many known words a hint lists."""


class DovetailError(Exception):
    """A mistake a user can put right: what is wrong, and the way out."""

    def __init__(self, message: str, *, hint: str) -> None:
        """Keep the message and the hint apart, so that each front end can lay them out."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.add_note(f"hint: {hint}")  # a traceback ends in it

    def __str__(self) -> str:
        """Return the message alone; the hint is shown beside it."""
        return self.message


class SpecError(DovetailError, ValueError):
    """A description that makes no sense; `key` says where in it, `file` in which file."""

    def __init__(self, complaint: str, *, hint: str, key: str = "", file: str = "") -> None:
        """Compose `file: key complaint`, leaving out what is not known yet."""
        place = f"{file}: " if file else ""
        super().__init__(f"{place}{key} {complaint}" if key else f"{place}{complaint}", hint=hint)
        self.complaint = complaint
        self.key = key
        self.file = file

    def under(self, prefix: str) -> SpecError:
        """Return the same complaint one level further up: `limit` becomes `resource[1].limit`."""
        key = f"{prefix}.{self.key}" if prefix and self.key else prefix or self.key
        return SpecError(self.complaint, hint=self.hint, key=key, file=self.file)

    def in_file(self, file: str) -> SpecError:
        """Return the same complaint with the file it was found in."""
        return SpecError(self.complaint, hint=self.hint, key=self.key, file=file)


class PlanError(DovetailError):
    """A plan that does not fit its problem, or a method that has no plan to offer."""


class NoPlanError(PlanError):
    """Proven: no plan can meet the demands."""


class MissingExtraError(DovetailError):
    """An optional part of Dovetail was asked for and is not installed."""

    def __init__(self, what: str, *, extra: str) -> None:
        """Name the extra that brings it."""
        super().__init__(f"{what} is not installed", hint=f'install it with: pip install "dovetail[{extra}]"')


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` was most likely meant to be, whatever its case, or None."""
    choices = {choice.casefold(): choice for choice in known}
    near = difflib.get_close_matches(word.casefold(), choices, n=1, cutoff=0.6)
    return choices[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question with the nearest known word, or the list of them, cut short where it is long."""
    choices = list(known)
    if near := nearest(word, choices):
        return f"did you mean `{near}`?"
    listed = ", ".join(f"`{choice}`" for choice in choices[:MOST_LISTED])
    left_out = len(choices) - MOST_LISTED
    return f"known are: {listed}" + (f" and {left_out} more" if left_out > 0 else "")
