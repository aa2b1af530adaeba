"""The toy federation lies beside the contract tests."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "contract"), str(TESTS / "golden")]
