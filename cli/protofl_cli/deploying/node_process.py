"""A node on this machine: the resident host and Flower's SuperNode."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from protofl.errors import RunFailure, UsageError
from protofl.system.machine import fresh_interpreter
from protofl_cli.deploying import programs
from protofl_cli.deploying.keys import make_node_key
from protofl_cli.deploying.programs import Child, environment, program

HOST = "protofl_plugins.backends.node"
"""The module of the resident host."""

REFUSED = 60.0
"""Seconds for which the link refuses a node that was killed."""


def make_node(folder: Path, settings: str) -> str:
    """Write a node's folder: key pair and ``node.toml``; return the public key.

    Raises:
        UsageError: The folder has a key.
    """
    folder = folder.expanduser().absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    public = make_node_key(folder / "key")
    (folder / "node.toml").write_text(settings, encoding="utf-8")
    return public


def link_of(folder: Path, settings: Mapping[str, Any]) -> str:
    """Return the address of the link in ``node.toml``.

    Raises:
        UsageError: The address, the key or the certificate of the link is missing.
    """
    for name, do in (
        ("key", "make one with: protofl node init"),
        ("ca.crt", "copy the file of the federation's folder there"),
    ):
        if not (folder / name).is_file():
            raise UsageError(f"{folder / name} is missing", do=do)
    address = settings.get("link")
    if not isinstance(address, str) or ":" not in address:
        raise UsageError(f"node.toml: link is {address!r}", do='write link = "HOST:PORT"')
    return address


@contextmanager
def running_node(folder: Path, address: str) -> Iterator[Callable[[], None]]:
    """Run a node in the block; yield a function that raises if one of its programs has ended.

    Args:
        folder: The node's folder.
        address: The link's address, HOST:PORT.

    Raises:
        RunFailure: A program did not start.
    """
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    with ExitStack() as until:
        # The path of a Unix socket is short, and the folder of this one is closed to others.
        place = until.enter_context(tempfile.TemporaryDirectory(prefix="protofl-node-"))
        door = Path(place) / "host"
        command, variables = fresh_interpreter(HOST)
        one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        host = Child([*command, str(folder), str(door)], logs / "host.log", {**variables, **one})
        until.callback(host.stop)
        wait_for_door(door, host)
        supernode = [program("flower-supernode"), "--superlink", address]
        supernode += ["--root-certificates", str(folder / "ca.crt")]
        supernode += ["--auth-supernode-private-key", str(folder / "key")]
        supernode += ["--host", "127.0.0.1", "--port", str(programs.free_port())]
        supernode += ["--node-config", f"socket={json.dumps(str(door))}"]
        node = Child(supernode, logs / "supernode.log", environment(folder / "flower"))
        until.callback(node.stop)

        def check() -> None:
            host.check()
            node.check()

        yield check


def wait_for_door(door: Path, host: Child, seconds: float = 120) -> None:
    """Wait until the resident host listens.

    Raises:
        RunFailure: It ended, or does not listen in time.
    """
    end = time.monotonic() + seconds
    while not door.exists():
        host.check()
        if time.monotonic() > end:
            raise RunFailure(f"the host does not listen after {seconds:g} s", do=f"see {host.log}")
        time.sleep(0.1)
