"""The version of this release, and of what it runs on."""

from __future__ import annotations

import platform

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """Return the versions of protofl, torch and Python: {name: version}."""
    import torch  # takes a second, and the version alone is asked for before there is work

    return {
        "protofl": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
