"""Models of ``partition``."""

from __future__ import annotations

from protofl_cli.json.base import Output


class PartClient(Output):
    """The samples of a client."""

    client: int
    """Number of the client."""
    name: str | None
    """Name of the client, if the data have names."""
    train: list[int]
    """Training samples of each class."""
    test: list[int]
    """Test samples of each class."""


class Partition(Output):
    """A split of a data set over clients."""

    dataset: str
    """Data set, as of `--dataset`."""
    partition: str
    """Partitioner."""
    seed: int
    """Seed."""
    classes: list[str]
    """Names of the classes; of other tasks those of the parts."""
    clients: list[PartClient]
    """The clients."""
    majority: float
    """Score of always guessing the most frequent class of a client, 0 to 1."""
    public_samples: int
    """Number of public samples."""
    global_test_samples: int
    """Number of samples of the global test set."""
    hash: str
    """Hash of the split."""
    notes: list[str]
    """Notes for the user."""
    picture: str
    """File of the picture."""
