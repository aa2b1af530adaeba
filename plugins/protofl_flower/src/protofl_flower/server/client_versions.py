"""Versions of clients that lie on nodes, as a deployed run counts them.

A version is the length and the CRC-32 of a client's file on its node. The run decides which version
of a client counts: a node that lost a reply, or answered too late, has a version that the run never
named, and goes back to the one that the next job names. So a client is trained exactly once per
round. The checkpoint of a run names files as every checkpoint does; nodes are told with their next
jobs which version has which name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import protofl as pf
from protofl_flower.protocol.messages import version_of


class Versions:
    """The versions of a trial's clients that count."""

    def __init__(self) -> None:
        self._now: dict[int, str] = {}
        self._flown: dict[int, tuple[str, str]] = {}
        self._before: dict[int, str] = {}
        self._names: dict[str, str] = {}

    def start(self, files: Mapping[int, str], checks: Mapping[int, Sequence[int]]) -> None:
        """Start a trial, in which some clients have files: their names, lengths and CRC-32."""
        self._before, self._now, self._flown = {}, {}, {}
        for client, name in files.items():
            self._names[name] = self._now[client] = version_of(*checks[client])

    def now(self, client: int) -> str:
        """Return the version that counts; empty for the initial state."""
        return self._now.get(client, "")

    def begin(self, client: int) -> None:
        """Note that a client is to train: an `Undo` takes no earlier training back."""
        self._before.pop(client, None)
        self._flown.pop(client, None)

    def trained(self, client: int, version: str) -> None:
        """Note that a client has trained."""
        self._before[client] = self.now(client)
        self._now[client] = version

    def flown(self, client: int, file: str, version: str) -> None:
        """Note that a client in flight has trained; a `Load` of the file makes it count."""
        self._flown[client] = file, version

    def answer(self, header: Mapping[str, Any]) -> pf.backends.Reply:
        """Do a job that needs no node: save, undo, or load what a client in flight has become."""
        client, kind = header["client"], header["kind"]
        if kind == "Load" and self._flown.get(client, ("",))[0] == header["path"]:
            self._now[client] = self._flown.pop(client)[1]
            return pf.backends.Reply()
        if kind == "Undo":
            if client in self._before:
                self._now[client] = self._before.pop(client)
            return pf.backends.Reply()
        if kind != "Save" or not self.now(client):
            raise TypeError(f"a pool of nodes cannot do {kind} of client {client}")
        self._names[header["path"]] = version = self.now(client)
        size, crc = (int(digits, 16) for digits in version.split("-"))
        return pf.backends.SaveReply(size=size, crc=crc)

    def keep(self, names: Collection[str]) -> None:
        """Note the names of all files that the run may need."""
        self._names = {name: self._names.get(name, "") for name in names}

    def needed(self, clients: Iterable[int]) -> tuple[dict[str, str], list[str]]:
        """Return what the node of these clients must keep.

        Returns:
            {name of a file: its version, empty if the node alone knows it}, and other versions.
        """
        client_set = {*clients}
        versions = {self.now(client) for client in client_set}
        versions |= {self._before.get(client, "") for client in client_set}
        versions |= {self._flown.get(client, ("", ""))[1] for client in client_set}
        names = {
            name: v for name, v in self._names.items() if int(name.split("-")[1]) in client_set
        }
        return names, sorted(versions - {""})
