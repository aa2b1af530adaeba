"""Models of ``publish`` and ``verify``."""

from __future__ import annotations

from protofl_cli.json.base import Output


class Published(Output):
    """A published folder."""

    folder: str
    """The folder."""
    digest: str
    """SHA-256 of its `SHA256SUMS`, which fixes every byte of the folder."""
    runs: list[str]
    """Names of the runs."""
    files: int
    """Number of files with a digest."""
    size: int
    """Their bytes."""
    notes: list[str]
    """Notes for the user."""
    left_out: list[str]
    """Parts that are not published."""


class RepeatedRun(Output):
    """A published run that was done again."""

    name: str
    """The run."""
    rounds: int
    """Number of compared rounds, of all trials."""
    of: int
    """Number of rounds of the published run."""
    exact: bool
    """True if the figures had to be equal to the last bit."""
    reasons: list[str]
    """Why they need not be equal: what differs from the published run."""
    equal_rounds: int
    """Number of rounds from the first on that are equal to the last bit."""
    largest: float | None
    """Largest difference of the test accuracy in a round, as a fraction; null without any."""
    tolerance: float
    """Allowed difference where the figures need not be equal."""
    accuracy: float | None
    """The published test accuracy of the last compared round."""
    accuracy_here: float | None
    """The test accuracy of the repeated run in this round."""
    first: list[tuple[str, object, object]]
    """Figures that differ in the first round that is not equal: name, published, here."""
    facts: list[tuple[str, object, object]]
    """Facts about data, split and models that differ: name, published, here."""
    seconds: float
    """Seconds of the repeated rounds."""
    confirmed: bool
    """True if the run has the published figures."""


class Verified(Output):
    """The result of checking a published folder."""

    folder: str
    """The folder."""
    confirmed: bool
    """True if nothing that was checked differs; otherwise the exit code is 1. Without a repeated
    run it does not say that the figures are right."""
    what: str
    """Comparisons that were made, or differences from the publication."""
    repeated: RepeatedRun | None
    """The repeated run; null if none was repeated."""
    not_repeated: list[str]
    """Runs that were not repeated."""
    not_checked: list[str]
    """Further parts that were not checked."""
    files: int
    """Number of files with a digest."""
    changed: list[str]
    """Files with other bytes."""
    missing: list[str]
    """Files that are not there."""
    extra: list[str]
    """Files that were not published."""
    digest: str
    """SHA-256 of `SHA256SUMS`."""
