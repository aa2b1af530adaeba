"""Data sets of ``.npz`` files, read as the plugin ``npz`` reads them."""

from __future__ import annotations

from protofl_plugins.datasets.npz import Npz


def read_npz(path, **options):
    return Npz().decode(config=Npz.Config(path=str(path), **options), data_dir=path.parent)
