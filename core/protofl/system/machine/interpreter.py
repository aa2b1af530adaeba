"""Fresh Python interpreters for what runs in processes of its own."""

from __future__ import annotations

import os
import sys

# ``python -m`` and ``python -c`` put the current folder first on the path, from where a file that
# is called ``queue.py`` by chance would be imported in place of Python's own. -P needs Python 3.11.
_START = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "import runpy; runpy.run_module(sys.argv[1], run_name='__main__')"
)


def fresh_interpreter(module: str) -> tuple[list[str], dict[str, str]]:
    """What starts a module in an interpreter of its own, which finds what this one finds.

    It imports nothing from the current folder, unless this process has it on its path by name.

    Args:
        module: The module's name; it runs as ``__main__``.

    Returns:
        The command, and the environment to start it with.
    """
    path = os.pathsep.join(p for p in sys.path if p)
    return [sys.executable, "-c", _START, module], {**os.environ, "PYTHONPATH": path}
