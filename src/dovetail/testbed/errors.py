"""What can go wrong with a test bed."""

from dovetail.errors import DovetailError


class HostError(DovetailError):
    """A host of the test bed, or one of its limits, cannot be made here."""
