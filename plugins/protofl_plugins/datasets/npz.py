"""A data set from one ``.npz`` file: ``--dataset npz:PATH``.

Keys: ``x_train``, ``y_train``, and ``x_test``, ``y_test`` where there is a test part; ``classes``
(names) where the classes have some. Images are N×H×W, N×H×W×C (C 1 or 3) or N×C×H×W, uint8, or
floats that are used as they are. Pickled content is never read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import protofl as pf


class Npz:
    """A data set from one .npz file with x_train, y_train and perhaps x_test, y_test."""

    argument = "path"
    defaults: ClassVar[dict[str, Any]] = {}

    class Config(pf.Config):
        """Options of npz."""

        path: str = pf.Field(description="the .npz file")

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The file's path, size and time."""
        path = Path(config.path).expanduser()
        if not path.is_file():
            raise pf.UsageError(f"no file {path}", do="give it as --dataset npz:PATH")
        return pf.files_key("npz", path, [path])

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.Dataset:
        """Read and check the file."""
        return pf.read_npz(config.path)
