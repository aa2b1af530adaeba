"""The process of a deployed run, which reaches Flower through the ServerApp that started it.

Started as ``python -m protofl_flower.run_process REQUEST``; standard output and input
carry calls and what they found (`transport.PipedTransport`).
"""

from __future__ import annotations

import os
import sys

from protofl_flower.backend import serve
from protofl_flower.protocol.transport import PipedTransport


def main() -> None:
    """Do the run of a request."""
    asked = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints of plugins are not calls
    serve(PipedTransport(asked, sys.stdin.buffer), sys.argv[-1])


if __name__ == "__main__":
    main()
