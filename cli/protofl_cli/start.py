"""The console script: imports and starts the command line."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point."""
    try:
        from protofl_cli.app import main as begin
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    try:
        begin()
    except SystemExit as end:
        _leave_trackers(end)
        raise


def _leave_trackers(end: SystemExit) -> None:
    """If a tracker hangs, end the program without waiting for its library."""
    told = sys.modules.get("protofl.runs.lifecycle.tracking")
    if told is not None and told.still_at_work():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 0)
