"""Folders that users have: where decoded data are kept."""

from __future__ import annotations

import os
from pathlib import Path


def default_data_dir() -> Path:
    """Where decoded data are kept unless ``--data-dir`` says otherwise.

    The folder of the environment variable ``PROTOFL_DATA_DIR``, otherwise ``~/.cache/protofl``.
    """
    return Path(os.environ.get("PROTOFL_DATA_DIR") or "~/.cache/protofl")
