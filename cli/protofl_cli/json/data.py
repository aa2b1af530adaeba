"""Models of ``data`` and ``partition``."""

from __future__ import annotations

from protofl_cli.json.base import Output


class ListedData(Output):
    """A known data set, or a content of the cache."""

    dataset: str
    """Name, or key in the cache; NAME:ARGUMENT if the data set takes an argument."""
    installed: bool
    """True for a data set of a plugin, false for other contents of the cache."""
    cached: bool
    """True if the cache has it."""
    bytes: int | None
    """Size of the cached file; null if it is not cached or not usable."""
    samples: int | None
    """Number of samples."""
    classes: int | None
    """Number of classes C."""
    kind: str | None
    """Kind of a sample: `image`, `series`, `tokens` or `table`."""
    shape: list[int] | None
    """Shape of a sample."""
    description: str
    """Description, or note of the cached file."""
    problem: str
    """Why it cannot be used; may be empty."""


class Cache(Output):
    """The cache of data sets."""

    folder: str
    """Folder."""
    datasets: list[ListedData]
    """Data sets of plugins, then other contents of the cache."""


class ImportedData(Output):
    """A data set that was added to the cache."""

    dataset: str
    """Name."""
    file: str
    """File in the cache."""
    train: int
    """Number of training samples."""
    test: int
    """Number of test samples."""
    classes: int
    """Number of classes C."""


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
