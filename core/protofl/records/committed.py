"""The committed round of a run folder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Commit:
    """The last committed round.

    Attributes:
        trial: Its trial.
        round: Its number.
        server: The server's file.
        clients: {client id: file} of all clients that have trained in this trial.
        checks: {client id: length and CRC-32 of its file} if hosts keep the clients' files.
        holders: Clients that hold the download of the round's end.
        journal: The file that names the clients' files.
    """

    trial: int
    round: int
    server: str
    clients: dict[int, str]
    checks: dict[int, list[int]]
    holders: list[int]
    journal: str
