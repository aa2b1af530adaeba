"""Domains in ``.npz`` files: one file per domain, which is named after it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

import protofl as pf


def read_domains(files: Sequence[Path]) -> pf.datasets.Dataset:
    """Join files that `protofl.datasets.read_npz` reads; the column ``domain`` names them.

    Further columns stay if all files have them.

    Raises:
        UsageError: A file cannot be read, lacks a class that another has, or has samples of
            another shape or type.
    """
    domains = [pf.datasets.read_npz(file) for file in files]
    classes = list(dict.fromkeys(name for data in domains for name in data.classes))
    for file, data in zip(files, domains, strict=True):
        present = {data.classes[c] for c in np.unique(data.y[: data.num_train].numpy())}
        check_classes(file, file.stem, present, classes)
    shared = set.intersection(*({*data.columns} for data in domains)) - {"domain"}
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ["domain", *sorted(shared)]}
    parts = []
    for training in (True, False):
        for file, data in zip(files, domains, strict=True):
            rows = slice(None, data.num_train) if training else slice(data.num_train, None)
            y = np.array([classes.index(name) for name in data.classes])[data.y[rows].numpy()]
            if len(y):
                parts.append((data.x[rows].numpy(), y, str(file)))
                columns["domain"].append(np.full(len(y), file.stem))
                for name in shared:
                    columns[name].append(data.columns[name][rows])
    return pf.datasets.dataset_from_arrays(
        parts,
        sum(data.num_train for data in domains),
        classes,
        kind=domains[0].sample.kind,
        columns={name: np.concatenate(each) for name, each in columns.items()},
    )


def check_classes(
    where: Path, domain: str, present: Collection[str], classes: Sequence[str]
) -> None:
    """Refuse a domain without training samples of a class.

    Raises:
        UsageError: A class of ``classes`` is not in ``present``.
    """
    if absent := [name for name in classes if name not in present]:
        raise pf.UsageError(
            f"{where}: domain {domain} has no training samples of class {absent[0]}",
            f"classes of all domains: {', '.join(classes)}",
            f"give all domains the same classes, or remove {domain}",
        )
