"""Models of ``publish``, ``verify`` and ``board``."""

from __future__ import annotations

from typing import Literal

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


class BoardRow(Output):
    """A method in a setting. Figures are means over seeds."""

    method: str
    """Name of the row: the method, and options if several rows have it."""
    rank: int | None
    """Place by the mean rank over clients and seeds; null if the method is not ranked."""
    groups: str
    """Letters of the significance groups; methods with a common letter do not differ."""
    best_group: bool
    """True for the first method, and for those in a group with it."""
    seeds: int
    """Number of seeds."""
    runs_repeated: str | None
    """How many of the row's published runs this machine has repeated with `protofl verify`: `1 of
    3`; null for records of a benchmark."""
    accuracy: float | None
    """Test accuracy in the round that counts, as a fraction."""
    low: float | None
    """Lower end of the 95 % interval over seeds."""
    high: float | None
    """Upper end."""
    worst: float | None
    """Accuracy of the worst client."""
    upload: float | None
    """Bytes that all clients upload up to the round that counts."""
    download: float | None
    """Bytes that they download."""
    rounds: float | None
    """The round that counts, from 1."""
    seconds: float | None
    """Seconds of a round, on the machine of the run."""
    mean_rank: float | None
    """Mean rank over clients and seeds."""
    badge: str
    """The badge, relative to the leaderboard."""
    page: str
    """The page of the method, relative to the leaderboard."""
    sources: list[str]
    """Published folders or records of the row."""


class BoardSetting(Output):
    """A setting: rows that can be compared."""

    name: str
    """Name."""
    chosen_round: Literal["validation", "last"]
    """The round that counts: the best one on validation samples, or the last one."""
    options: dict[str, object]
    """Options that all rows share."""
    blocks: int
    """Number of pairs of client and seed over which methods are ranked and tested."""
    rows: list[BoardRow]
    """Rows, the best mean rank first, then those that are not ranked."""
    groups: list[list[str]]
    """Significance groups of two or more methods, in the order of ranks."""
    refused: dict[str, str]
    """Methods that do not fit the setting, and why."""


class Leaderboard(Output):
    """A leaderboard: the content of `board.json`."""

    format: int
    """Version of this form."""
    title: str
    """Title of the first page."""
    settings: list[BoardSetting]
    """Settings."""
    notes: list[str]
    """Parts that are left out, and why."""
