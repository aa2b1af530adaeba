"""``federation.toml``: the server's address, and a table for each node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import protofl as pf
from protofl_flower.files import read_toml

FILE = "federation.toml"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}\Z")


@dataclass(frozen=True)
class NodeEntry:
    """The table of a node in the file.

    Attributes:
        name: Its name.
        key: Its public key, as OpenSSH writes it.
        clients: Its clients.
        architecture: Name or number of its clients' architecture; empty for i mod X.
    """

    name: str
    key: str
    clients: tuple[int, ...]
    architecture: str = ""


@dataclass(frozen=True)
class Federation:
    """A federation's folder, as its file describes it.

    Attributes:
        folder: The folder.
        port: The port of the server on this machine.
        public: The address at which nodes reach the server, HOST:PORT.
        nodes: The nodes.
        data: The form of the nodes' own data, ``sample`` and ``classes``, for tokens also
            ``vocabulary`` and ``padding``; empty if a run names a data set.
    """

    folder: Path
    port: int
    public: str
    nodes: Sequence[NodeEntry]
    data: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The address of the server on this machine."""
        return f"127.0.0.1:{self.port}"

    def write(self) -> None:
        """Write the file."""
        lines = [
            "# The server listens on 127.0.0.1; nodes reach it at `public` through a proxy.",
            f"port = {self.port}",
            f"public = {json.dumps(self.public)}",
        ]
        if self.data:
            lines += ["", "[data]    # the form of the nodes' own data"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in self.data.items()]
        for node in self.nodes:
            clients = ", ".join(map(str, node.clients))
            lines += ["", "[[node]]", f"name = {json.dumps(node.name)}"]
            lines += [f"key = {json.dumps(node.key)}", f"clients = [{clients}]"]
            if node.architecture:
                lines += [f"architecture = {json.dumps(node.architecture)}"]
        (self.folder / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_federation(folder: Path) -> Federation:
    """Read the file of a federation.

    Raises:
        UsageError: The file is missing, or not as `Federation.write` writes it.
    """
    path = pf.expand_user(folder).absolute() / FILE
    if not path.is_file():
        raise pf.UsageError(f"{path} is missing", do="make a federation with: protofl deploy init")
    table = read_toml(path)
    if unknown := sorted(table.keys() - {"port", "public", "node", "data"}):
        raise pf.UsageError(f"{path}: unknown key {unknown[0]}", "known: port, public, data, node")
    port, public, tables = table.get("port"), table.get("public"), table.get("node", [])
    if type(port) is not int or not 0 < port < 65536:
        raise pf.UsageError(f"{path}: port is {port!r}", do="write a number from 1 to 65535")
    if not isinstance(public, str) or not isinstance(tables, list):
        raise pf.UsageError(f"{path}: public is {public!r}", do='write public = "HOST:PORT"')
    nodes = [_entry(path, each) for each in tables]
    check_nodes(path, nodes)
    return Federation(path.parent, port, public, nodes, _form(path, table.get("data", {})))


def _form(path: Path, table: Any) -> dict[str, str | int]:  # noqa: ANN401 - whatever the file holds
    """Return the form of the nodes' data, with the classes as one text."""
    keys = ("sample", "classes", "vocabulary", "padding")
    if not isinstance(table, dict) or table.keys() - {*keys}:
        raise pf.UsageError(f"{path}: data is {table!r}", f"expected the keys {', '.join(keys)}")
    if table and not {"sample", "classes"} <= table.keys():
        do = 'write sample = "1x28x28" and classes = 10'
        raise pf.UsageError(f"{path}: [data] has {', '.join(table)}", do=do)
    classes = table.get("classes")
    names = [*map(str, classes)] if isinstance(classes, list) else [str(classes)]
    if isinstance(classes, list) and any("," in name for name in names):
        raise pf.UsageError(f"{path}: a class has a comma in its name: {', '.join(names)}")
    return {**table, "classes": ",".join(names)} if table else {}


def _entry(path: Path, table: Any) -> NodeEntry:  # noqa: ANN401 - whatever the file holds
    keys = ("name", "key", "clients")
    if not isinstance(table, dict) or {*table} - {"architecture"} != {*keys}:
        expected = f"expected the keys {', '.join(keys)} and, if wanted, architecture"
        raise pf.UsageError(f"{path}: a node is {table!r}", expected)
    clients = table["clients"]
    if not isinstance(clients, list) or any(type(c) is not int or c < 0 for c in clients):
        raise pf.UsageError(f"{path}: clients is {clients!r}", do="write clients = [NUMBER, …]")
    architecture = str(table.get("architecture", ""))
    return NodeEntry(str(table["name"]), str(table["key"]), tuple(clients), architecture)


def check_nodes(where: Path, nodes: Iterable[NodeEntry]) -> None:
    """Check that names, keys and clients of nodes are different.

    Raises:
        UsageError: Two nodes share one, or a name has other characters.
    """
    seen: dict[tuple[str, object], str] = {}
    for node in nodes:
        if not NAME.match(node.name):
            do = "use up to 40 letters, digits, '.', '_' and '-'"
            raise pf.UsageError(f"{where}: {node.name!r} is not a name of a node", do=do)
        identifiers = [
            ("name", node.name),
            ("key", node.key),
            *(("client", c) for c in node.clients),
        ]
        for what, value in identifiers:
            if (what, value) in seen:
                raise pf.UsageError(
                    f"{where}: {node.name} and {seen[what, value]} have the same {what}"
                    + (f" {value}" if what == "client" else "")
                )
            seen[what, value] = node.name
