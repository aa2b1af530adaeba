"""Partitioners of flwr-datasets: ``--partition flwr:NAME``.

NAME is a class of ``flwr_datasets.partitioner``, ``flwr:DirichletPartitioner`` or short
``flwr:dirichlet``. Some of its arguments are options: ``--set partition.alpha=0.3``. All others are
given together: ``--set partition.arguments='{"key": 1}'``. These arguments follow from the run
unless they are given:

    num_partitions   the clients, --clients; where a partitioner has none, it counts them
    partition_by     the column ``label``: the class's number. Other columns are those of the data
    seed             drawn by the run's seed

The partitioner sees labels and columns of the data, in the data's order, and not the samples. Each
client's rows are then split 75/25, as with any other partitioner.

Source: https://flower.ai/docs/datasets/.
"""

from __future__ import annotations

import difflib
import inspect
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np
import pydantic

import protofl as pf

_ROW = "(row)"

_NO_ARGUMENTS = ("name", "arguments")


def _plain(value: object) -> object:
    """Return the value of JSON, or of numbers with commas, that a command line wrote as a text."""
    if isinstance(value, str):
        for text in (value, f"[{value}]"):
            try:
                return json.loads(text)
            except ValueError:
                pass
    return value


class FlowerDatasets:
    """A partitioner of flwr-datasets with its own arguments (flwr:NAME; protofl[flwr-datasets])."""

    argument = "name"
    check_argument = "iid"
    leaves_out = "samples that the partitioner of flwr-datasets leaves out"

    class Config(pf.Config):
        """Options of flwr: arguments of the partitioner. None leaves an argument out."""

        name: str = pf.Field(description="the class, such as dirichlet or DirichletPartitioner")
        partition_by: str | None = pf.Field(
            None, description="the column by which samples are divided. None: label"
        )
        alpha: Annotated[float | list[float] | None, pydantic.BeforeValidator(_plain)] = pf.Field(
            None, description="concentration of a Dirichlet distribution; small is more skewed"
        )
        shuffle: bool | None = pf.Field(None, description="shuffle the samples")
        seed: int | None = pf.Field(
            None, ge=0, description="the partitioner's seed. None: drawn by the run's"
        )
        arguments: Annotated[dict[str, Any], pydantic.BeforeValidator(_plain)] = pf.Field(
            {}, description="further arguments of the partitioner, as JSON"
        )

    @pf.hookimpl
    def count_clients(
        self, labels: np.ndarray, columns: Mapping[str, np.ndarray], config: Config
    ) -> int | None:
        """Return the number of a partitioner that counts clients itself; None: any number."""
        kind = _class(config.name)
        if "num_partitions" in inspect.signature(kind).parameters:
            return None
        partitioner = _made(kind, config, None, None)
        with _errors(config.name, []):
            partitioner.dataset = _table(labels, columns)
            return int(partitioner.num_partitions)

    @pf.hookimpl
    def partition(
        self,
        labels: np.ndarray,
        num_clients: int,
        columns: Mapping[str, np.ndarray],
        generator: np.random.Generator,
        config: Config,
        notes: list[str],
    ) -> list[np.ndarray]:
        """Ask the partitioner for each client's rows."""
        seed = int(generator.integers(2**31))
        partitioner = _made(_class(config.name), config, num_clients, seed)
        with _errors(config.name, notes):
            partitioner.dataset = _table(labels, columns)
            parts = [partitioner.load_partition(client) for client in range(num_clients)]
            return [
                np.asarray(part.with_format("numpy")[_ROW][:], np.int64).reshape(-1)
                for part in parts
            ]


def _library() -> tuple[Any, Any]:
    """Return the libraries datasets and flwr_datasets.partitioner.

    Raises:
        UsageError: They are not installed.
    """
    try:
        import datasets
        from flwr_datasets import partitioner
    except ImportError as error:
        raise pf.UsageError(
            f"--partition flwr:… needs the package flwr-datasets, which is not installed: {error}",
            do="pip install 'protofl[flwr-datasets]'",
        ) from error
    return datasets, partitioner


def _class(name: str) -> Any:  # noqa: ANN401 - flwr-datasets is optional
    """Return a partitioner's class.

    Raises:
        UsageError: There is no such class, or it divides columns.
    """
    _, library = _library()
    classes = {
        each.removesuffix("Partitioner").lower(): each
        for each in library.__all__
        if each not in ("Partitioner", "IdToSizeFncPartitioner")
    }
    short = name.removesuffix("Partitioner").replace("-", "").replace("_", "").lower()
    if short not in classes:
        near = difflib.get_close_matches(short, classes, n=1)
        raise pf.UsageError(
            f"flwr:{name}: flwr-datasets has no such partitioner",
            f"partitioners: {', '.join(sorted(classes))}"
            + (f"; did you mean {near[0]}?" if near else ""),
        )
    if short.startswith("vertical"):
        raise pf.UsageError(
            f"flwr:{name} divides columns, and clients here have samples of one form",
            do=f"use one that divides rows: {', '.join(c for c in classes if 'vert' not in c)}",
        )
    return getattr(library, classes[short])


def _made(kind: Any, config: FlowerDatasets.Config, clients: int | None, seed: int | None) -> Any:  # noqa: ANN401
    """Return a partitioner with its arguments.

    Raises:
        UsageError: It has no such argument, or lacks one.
    """
    known = inspect.signature(kind).parameters
    given = {
        name: value
        for name in type(config).model_fields
        if name not in _NO_ARGUMENTS and (value := getattr(config, name)) is not None
    } | config.arguments
    for name in given:
        if name not in known:
            raise pf.UsageError(
                f"flwr:{config.name} has no argument {name!r}",
                f"arguments: {', '.join(n for n in known if n != 'num_partitions') or 'none'}",
                f"leave partition.{name} out",
            )
    usual = {"num_partitions": clients, "partition_by": "label", "seed": seed}
    given = {name: value for name, value in usual.items() if name in known} | given
    if "distribution_array" in given:
        given["distribution_array"] = np.array(given["distribution_array"])
    missing = [
        name
        for name, parameter in known.items()
        if parameter.default is parameter.empty and name not in given
    ]
    if missing:
        raise pf.UsageError(
            f"flwr:{config.name} needs {' and '.join(missing)}",
            do=" ".join(
                f"--set partition.{name}=…"
                if name in type(config).model_fields
                else f"--set partition.arguments='{{\"{name}\": …}}'"
                for name in missing
            ),
        )
    with _errors(config.name, []):
        return kind(**given)


@contextmanager
def _errors(name: str, notes: list[str]) -> Iterator[None]:
    """Turn errors of the library during a block into errors of use, and warnings into notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except pf.UsageError:
            raise
        except Exception as error:  # any of the partitioner's
            text = " ".join(str(error).split())[:400] or type(error).__name__
            raise pf.UsageError(
                f"flwr:{name}: {text}", do="change its arguments, or --clients"
            ) from error
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            notes.append(f"flwr:{name}: {' '.join(str(warning.message).split())}")


def _table(labels: np.ndarray, columns: Mapping[str, np.ndarray]) -> Any:  # noqa: ANN401
    """Return labels, columns and row numbers as a data set of the library."""
    datasets, _ = _library()
    content = {**columns, "label": labels, _ROW: np.arange(len(labels))}
    return datasets.Dataset.from_dict(content)
