"""The server: Flower's SuperLink and SuperExec on this machine, and calls to them."""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import protofl as pf
from protofl_flower.deployment import programs
from protofl_flower.deployment.federation_file import Federation
from protofl_flower.deployment.keys import (
    check_library,
    make_certificates,
    pem_of,
    write_secret,
)
from protofl_flower.deployment.programs import Child, call, environment, program, wait_for_port
from protofl_flower.files import folder_lock, write_json

APP = "protofl_flower.flower_app"
"""The package with the Flower app, the same for every run."""


def make_federation(
    folder: Path, public: str, port: int, data: Mapping[str, str | int] | None = None
) -> Federation:
    """Write a federation's folder: certificates, a secret and ``federation.toml``.

    Args:
        folder: The folder, new or empty.
        public: HOST:PORT at which nodes reach the server.
        port: The port on this machine.
        data: The form of the nodes' own data, see `Federation`.

    Raises:
        UsageError: The folder has files.
    """
    check_library()
    folder = pf.expand_user(folder).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise pf.UsageError(f"{folder} is not empty", do="give a new folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    hosts = [*dict.fromkeys([public.rpartition(":")[0], "localhost", "127.0.0.1"])]
    make_certificates(folder, hosts)
    write_secret(folder / "secret", secrets.token_bytes(32))
    made = Federation(folder, port, public, [], data or {})
    made.write()
    return made


@contextmanager
def running_server(federation: Federation) -> Iterator[Callable[[], None]]:
    """Run the server in the block; yield a function that raises if one of its programs has ended.

    Raises:
        RunFailure: A program did not start.
        UsageError: The server runs already, or the port is taken.
    """
    with folder_lock(federation.folder, "federation"):
        check_port(federation.port)
        with _programs(federation) as check:
            yield check


def check_port(port: int) -> None:
    """Check that no other program listens at a port of this machine.

    Raises:
        UsageError: One does.
    """
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind(("127.0.0.1", port))
        except OSError as error:
            raise pf.UsageError(
                f"port {port} of this machine cannot be used: {error.strerror}",
                do="end the program that uses it, or write another port into federation.toml",
            ) from None


@contextmanager
def _programs(federation: Federation) -> Iterator[Callable[[], None]]:
    folder, here = federation.folder, federation.address
    logs, secret, authority = folder / "logs", str(folder / "secret"), str(folder / "ca.crt")
    logs.mkdir(exist_ok=True)
    common = ["--superexec-auth-secret-file", secret]
    superlink = [program("flower-superlink"), "--host", "127.0.0.1"]
    superlink += ["--port", str(federation.port), "--database", str(folder / "state.db")]
    superlink += ["--ssl-ca-certfile", authority, "--ssl-certfile", str(folder / "server.crt")]
    superlink += ["--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"]
    superlink += ["--isolation", "process", *common]
    superexec = [program("flower-superexec"), "--runtime-api-address", here]
    superexec += ["--root-certificates", authority, *common]
    with ExitStack() as until:
        server = Child(superlink, logs / "superlink.log", environment(folder / "superlink"))
        until.callback(server.stop)
        wait_for_port(federation.port, server)
        executor = Child(superexec, logs / "superexec.log", environment(folder / "superexec"))
        until.callback(executor.stop)
        register(federation)

        def check() -> None:
            server.check()
            executor.check()

        yield check


def connection(federation: Federation) -> Path:
    """Write Flower's file of connections; return its folder."""
    home = federation.folder / "cli"
    home.mkdir(exist_ok=True)
    authority = json.dumps(str(federation.folder / "ca.crt"))
    text = '[superlink]\ndefault = "lab"\n\n[superlink.lab]\n'
    text += f'address = "{federation.address}"\nroot-certificates = {authority}\n'
    (home / "config.toml").write_text(text, encoding="utf-8")
    return home


def flwr(federation: Federation, *arguments: str) -> dict[str, Any]:
    """Call ``flwr`` for the server, which must run.

    Raises:
        RunFailure: The call failed.
    """
    return call(arguments, connection(federation))


def node_states(federation: Federation) -> dict[str, str]:
    """Return {name of a node: its status at Flower} of the registered nodes.

    Raises:
        RunFailure: The server does not run.
    """
    nodes = flwr(federation, "supernode", "list", "lab").get("nodes", [])
    states = {str(node["node-id"]): str(node["status"]) for node in nodes}
    registered = _registered(federation)
    return {name: states[number] for name, number in registered.items() if number in states}


def _registered(federation: Federation) -> dict[str, str]:
    """Return {name of a node: its number at Flower}, as the last registrations said."""
    path = federation.folder / "registered.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def register(federation: Federation) -> None:
    """Register all nodes that the server does not know yet."""
    known = node_states(federation)
    numbers = {name: number for name, number in _registered(federation).items() if name in known}
    for node in federation.nodes:
        if node.name not in known:
            file = federation.folder / f"{node.name}.pub"
            file.write_text(node.key + "\n", encoding="utf-8")
            made = flwr(federation, "supernode", "register", str(file), "lab", "--name", node.name)
            numbers[node.name] = str(made["node-id"])
            write_json(federation.folder / "registered.json", numbers)


def submit(
    federation: Federation, run: str, options: dict[str, Any], say: Callable[[str], None]
) -> None:
    """Start a run on the server, follow its lines and wait for its end.

    Args:
        federation: The federation, whose server runs.
        run: The name of the run on the nodes.
        options: Options of `protofl.run`.
        say: Takes each line of the run.

    Raises:
        ProtoflError: The run failed.
    """
    from importlib.util import find_spec

    folder = federation.folder / "requests" / f"{run}-{time.time_ns()}"
    folder.mkdir(parents=True)
    lines, end = folder / "lines.txt", folder / "end.json"
    lines.touch()
    nodes = [{"name": n.name, "key": pem_of(n.key), "clients": n.clients} for n in federation.nodes]
    request = {"run": run, "options": options, "nodes": nodes}
    request |= {"lines": str(lines), "end": str(end)}
    (folder / "request.json").write_text(json.dumps(request, default=str), encoding="utf-8")
    spec = find_spec(APP)
    assert spec is not None and spec.origin is not None
    config = f"request={json.dumps(str(folder / 'request.json'))}"
    began = flwr(federation, "run", str(Path(spec.origin).parent), "lab", "-c", config)
    follow(federation, str(began.get("run-id", "")), lines, end, say)


def follow(
    federation: Federation, number: str, lines: Path, end: Path, say: Callable[[str], None]
) -> None:
    """Pass on the lines of a run until its end.

    Args:
        federation: The federation.
        number: Flower's number of the run.
        lines: The file to which the run writes lines.
        end: The file that the run writes at its end.
        say: Takes each line.

    Raises:
        ProtoflError: The run failed, or its program ended without a word.
    """
    looked = time.monotonic()
    with open(lines, encoding="utf-8") as file:
        while True:
            ended = end.exists()
            for line in file:
                say(line.rstrip("\n"))
            if ended:
                break
            if time.monotonic() - looked > 15:
                looked = time.monotonic()
                try:
                    status = status_of(federation, number)
                except pf.RunFailure as error:
                    raise pf.RunFailure(
                        f"the server has ended, and the run with it: {error.what}",
                        do=f"start it again: protofl deploy server {federation.folder}; then "
                        "continue the run with --resume",
                    ) from None
                if status.startswith("finished") and not end.exists():
                    log = federation.folder / "logs" / "superexec.log"
                    what = (
                        f"Flower's run {number} ended without a result ({status}): its ServerApp "
                    )
                    what += "was killed or stopped"
                    do = f"finished rounds are saved: continue with --resume; see {log}"
                    raise pf.RunFailure(what, programs.last_line(log), do)
            time.sleep(0.3)
    outcome = json.loads(end.read_text(encoding="utf-8"))
    if "failure" in outcome:
        raise pf.ProtoflError.from_values(outcome["failure"])


def status_of(federation: Federation, number: str) -> str:
    """Return Flower's status of a run."""
    return runs_of(federation).get(number, "")


def runs_of(federation: Federation) -> dict[str, str]:
    """Return {Flower's number of a run: its status}, the latest first."""
    runs = flwr(federation, "ls", "lab").get("runs", [])
    return {str(run["run-id"]): str(run["status"]) for run in runs}
