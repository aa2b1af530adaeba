"""Rounds: the server asks the participants of a round, waits for them, and acts."""

from __future__ import annotations


class Rounds:
    """Rounds: the server waits for the participants, then acts."""
