"""Model of the JSON of ``protofl leak``, which is the content of ``leak.json`` and its folder."""

from __future__ import annotations

from protofl_cli.public import Output


class Number(Output):
    """A number with its 95 % interval, or the reason why it was not measured."""

    value: float | None
    """The number; null if it was not measured."""
    low: float | None = None
    """Lower end of the interval; missing without one."""
    high: float | None = None
    """Upper end of the interval; missing without one."""
    units: int
    """Number of independent units behind it: samples, clients, rows."""
    why: str = ""
    """Reason why it was not measured; missing if it was."""


class AttackedKey(Output):
    """Strongest result of each attack on a key, as text."""

    key: str
    """Key of the uploads."""
    meaning: str
    """Content, as the method declares it."""
    labels: str
    """Label inference."""
    membership: str
    """Membership inference."""
    reconstruction: str
    """Reconstruction of samples."""
    properties: str
    """Property inference."""


class Labels(Output):
    """Label inference from a key."""

    key: str
    """Key of the uploads."""
    how: str
    """How the attacker reads the key."""
    exact: bool
    """True if the counts of all clients are exact."""
    presence: Number
    """Area under the ROC curve of telling classes that a client has from others."""
    distance: Number
    """Total variation between estimated and true class shares, mean over clients."""
    guess: Number
    """The same for a guess that every client has the mean shares."""


class Membership(Output):
    """Membership inference from a key."""

    key: str
    """Key of the uploads."""
    attacker: str
    """Attacker."""
    rule: str
    """`threshold`, `per-class` or `lira`."""
    auc: Number
    """Area under the ROC curve."""
    tpr: dict[str, Number]
    """True-positive rate by false-positive rate."""
    members: int
    """Number of members."""
    held_out: int
    """Number of non-members."""
    others: Number
    """Area of the same attack on samples of other clients."""
    by_size: dict[str, Number]
    """Area by the number of samples of the class."""


class Reconstruction(Output):
    """Reconstruction of samples from rows of a key."""

    key: str
    """Key of the uploads."""
    attacker: str
    """Attacker."""
    behind: str
    """`sent`, or the number of samples behind each row."""
    rows: int
    """Number of rows."""
    psnr: Number
    """PSNR in dB to the most similar sample."""
    baseline: Number
    """PSNR of the mean sample of the class."""
    gain: Number
    """PSNR minus that of the mean sample, row by row."""
    ssim: Number
    """SSIM to the most similar sample, of images."""
    baseline_ssim: Number
    """SSIM of the mean sample."""
    lpips: Number
    """LPIPS, of images."""
    mse: Number
    """Mean squared error to the most similar sample."""


class Property(Output):
    """Prediction of a column of the data from a key."""

    key: str
    """Key of the uploads."""
    column: str
    """Column."""
    auc: Number
    """Area under the ROC curve."""
    clients: int
    """Number of clients."""


class LeakOutput(Output):
    """Information in the uploads of a run that the attacks find."""

    method: str
    """The method of the run."""
    trial: int
    """Trial."""
    round: int
    """Round, from 0."""
    clients: int
    """Number of attacked clients."""
    shadows: int
    """Number of shadow runs."""
    attackers: dict[str, str]
    """Knowledge of each attacker."""
    keys: list[AttackedKey]
    """Keys of the uploads."""
    labels: list[Labels]
    """Label inference."""
    membership: list[Membership]
    """Membership inference."""
    reconstruction: list[Reconstruction]
    """Reconstruction."""
    properties: list[Property]
    """Property inference."""
    notes: list[str]
    """Notes for the user."""
    folder: str
    """Folder of `leak.json` and the picture."""
