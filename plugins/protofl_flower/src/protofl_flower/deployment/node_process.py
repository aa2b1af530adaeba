"""A node on this machine: the resident host and Flower's SuperNode."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import protofl as pf
from protofl_flower.deployment import programs
from protofl_flower.deployment.keys import check_library, make_node_key
from protofl_flower.deployment.programs import Child, environment, program
from protofl_flower.files import folder_lock, read_toml

HOST = "protofl_flower.node.host"
"""The module of the resident host."""

REFUSED = 60.0
"""Seconds for which the server refuses a node that was killed."""


def make_node(folder: Path, settings: str) -> str:
    """Write a node's folder: key pair and ``node.toml``; return the public key.

    Raises:
        UsageError: The folder has a key.
    """
    check_library()
    folder = pf.expand_user(folder).absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    public = make_node_key(folder / "key")
    (folder / "node.toml").write_text(settings, encoding="utf-8")
    return public


def settings_text(server: str, clients: Sequence[int], data: str = "") -> str:
    """Return the text of a new ``node.toml``."""
    mark = "" if data else "# "
    return f"""\
server = {json.dumps(server)}    # the federation's server
clients = {[*clients]}    # the clients that live here
# data_dir = "data"    # decoded data sets
# device = "cpu"
# client_store = "memory"    # or "disk"

{mark}[data]    # samples of this node; left out: all nodes have the data set of the run
{mark}dataset = {json.dumps(data or "npz:FILE")}    # or folder:DIR, pfllib:DIR, any installed one
# options = {{kind = "table"}}    # of the data set
# part = 0    # of data that come split: the part of each client
# seed = 0    # draws 25 % for tests if the data have no test part
# tell = "counts"    # what the server learns about sizes; or "sizes" or "nothing", which hides them
#                      from the server's operator, not from a server that sends crafted models;
#                      dp-prototypes and dp-sgd need "nothing"
# public = "npz:FILE"    # public samples, for methods that need them
# labels = {{kitten = "cat", "3" = "dog"}}    # own label to class of the federation

[policy]    # a plan outside it is refused before training
# methods = ["fedproto"]    # all installed ones if left out; also: transforms, models
# required = {{gaussian-noise = {{s = 0.1}}}}    # transforms that each run must use
# upload_limit = 4096    # MiB
# longest_job = 86400    # seconds
# classes = true    # code that is not installed
# malicious = true    # attacks by this node's clients
# observe = true    # features, images, true and predicted classes of samples
# class_counts = true    # metrics that count samples by class
# paths = true    # data sets and other plugins that read a file which the plan names
# most_clients = 100000    # clients of a run
# most_evaluations = 3    # evaluations of a client in a round
# losses = false    # keep sums of losses here; train_loss is then without this node
"""


def settings_of(folder: Path) -> dict[str, Any]:
    """Return the content of a node's ``node.toml``.

    Raises:
        UsageError: The file is missing or damaged.
    """
    return read_toml(folder / "node.toml")


def check_address(what: str, address: object) -> str:
    """Return an address of the form HOST:PORT.

    Raises:
        UsageError: It has another form.
    """
    host, colon, port = str(address).rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise pf.UsageError(f"{what} {address!r}: expected HOST:PORT")
    return str(address)


def server_of(folder: Path, settings: Mapping[str, Any]) -> str:
    """Return the address of the server in ``node.toml``.

    Raises:
        UsageError: The address, the key or the certificate of the server is missing.
    """
    for name, do in (
        ("key", "make one with: protofl node init"),
        ("ca.crt", "copy the file of the federation's folder there"),
    ):
        if not (folder / name).is_file():
            raise pf.UsageError(f"{folder / name} is missing", do=do)
    return check_address("node.toml: server is", settings.get("server"))


CAUSES = {
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not of this ca.crt, or has expired",
    "2001]": "the server knows no key of this node: protofl deploy add-node",
}
"""{words of Flower's log: a cause that time does not heal}; 1.42 writes ``[code: 2001]``."""


def cause_in(said: str) -> tuple[str, bool]:
    """Return the cause that Flower's log names, empty for none, and whether time may heal it."""
    if cause := next((explanation for mark, explanation in CAUSES.items() if mark in said), ""):
        return cause, False
    if "2004]" not in said:
        return "", True
    return (
        "the server refuses the key: it is not registered, another node uses it, or the node was "
        f"killed less than {REFUSED:.0f} s ago"
    ), True


AHEAD, BEHIND = 5.0, 300.0
"""Seconds by which a node's clock may differ from the server's: nodes sign the time."""


def look_at(address: str, authority: Path) -> tuple[str, float]:
    """Return how the server answers, and the seconds by which this clock is ahead of the server's.

    Args:
        address: The server, HOST:PORT.
        authority: The certificate of the federation.

    Raises:
        OSError: It does not answer, or with another certificate.
    """
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=str(authority))
    with closing(HTTPSConnection(host, int(port), context=context, timeout=10)) as line:
        line.connect()
        version = str(line.sock.version())
        try:
            line.request("HEAD", "/")
            there = parsedate_to_datetime(line.getresponse().headers["Date"])
        except (HTTPException, TypeError, ValueError):  # no time, or another kind of server
            return version, 0.0
        return version, (datetime.now(UTC) - there).total_seconds()


def check_clock(ahead: float) -> None:
    """Check by how many seconds this clock is ahead of the server's.

    Raises:
        UsageError: The server refuses all requests of such a node, which its programs do not say.
    """
    if -BEHIND < ahead < AHEAD + 1:  # the server's time is in whole seconds
        return
    way = "ahead of" if ahead > 0 else "behind"
    raise pf.UsageError(
        f"this clock is {abs(ahead):.0f} s {way} the server's",
        f"from {BEHIND:.0f} s behind to {AHEAD:.0f} s ahead",
        "set the clock, such as with NTP",
    )


def keep_running(folder: Path, say: Callable[[str], None]) -> None:
    """Run a node until the process is interrupted; start it again when it ends.

    Args:
        folder: The node's folder.
        say: Takes a line.

    Raises:
        ProtoflError: A setting is wrong, or the server refuses the node for good.
    """
    address = server_of(folder, settings_of(folder))
    while True:
        log = folder / "logs" / "supernode.log"
        start = log.stat().st_size if log.is_file() else 0
        try:
            with running_node(folder, address) as check:
                say(f"node of {address}, logs in {folder / 'logs'}")
                while True:
                    check()
                    time.sleep(2)
        except pf.RunFailure as problem:
            said = log.read_bytes()[start:].decode(errors="replace") if log.is_file() else ""
            cause, heals = cause_in(said)
            if not heals:
                raise pf.RunFailure(cause, do=problem.do) from None
            if not said:  # the host, which nothing on the server can heal
                raise
            reason = cause or problem.what
            with suppress(OSError):
                try:
                    check_clock(look_at(address, folder / "ca.crt")[1])
                except pf.UsageError as wrong:
                    reason = wrong.what
            say(f"{reason}; the next try is in 15 s")
            time.sleep(15)


@contextmanager
def running_node(folder: Path, address: str) -> Iterator[Callable[[], None]]:
    """Run a node in the block; yield a function that raises if one of its programs has ended.

    Args:
        folder: The node's folder.
        address: The server's address, HOST:PORT.

    Raises:
        RunFailure: A program did not start.
        UsageError: The node runs already.
    """
    logs = folder / "logs"
    with ExitStack() as until:
        until.enter_context(folder_lock(folder, "node"))
        logs.mkdir(exist_ok=True)
        # The path of a Unix socket is short, and the folder of this one is closed to others.
        remove_left_places(folder)
        place = until.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
        (Path(place) / OWNER).write_text(str(folder), encoding="utf-8")
        door = Path(place) / "host"
        command = [sys.executable, "-P", "-m", HOST, str(folder), str(door)]
        one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        host = Child(command, logs / "host.log", {**os.environ, **one})
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


PREFIX = "protofl-node-"
OWNER = "node"
"""The file in a folder of a socket that names the node's folder."""


def remove_left_places(folder: Path) -> None:
    """Remove the folders of sockets that this node left when it was killed; it must be locked."""
    for place in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        with suppress(OSError, UnicodeDecodeError):
            if (place / OWNER).read_text(encoding="utf-8") == str(folder):
                shutil.rmtree(place, ignore_errors=True)


def wait_for_door(door: Path, host: Child, seconds: float = 120) -> None:
    """Wait until the resident host listens.

    Raises:
        RunFailure: It ended, or does not listen in time.
    """
    end = time.monotonic() + seconds
    while not door.exists():
        host.check()
        if time.monotonic() > end:
            raise pf.RunFailure(
                f"the host does not listen after {seconds:g} s", do=f"see {host.log}"
            )
        time.sleep(0.1)
