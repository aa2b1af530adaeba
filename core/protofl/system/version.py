"""The versions of protofl, torch and Python."""

from __future__ import annotations

import platform

__version__ = "1.0.0"


def versions() -> dict[str, str]:
    """Return the versions of protofl, torch and Python: {name: version}."""
    import torch  # takes a second, and `__version__` does not need it

    return {
        "protofl": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
