"""The console script: imports and starts the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point."""
    try:
        from protofl_cli.app import main as begin
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    begin()
