"""Tests of ``protofl deploy`` and ``protofl node``: files, mistakes, a rehearsal with Flower."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, replace
from email.utils import formatdate
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

import protofl as pf
from protofl.hooks.discovery.command_help import summary
from protofl.hooks.discovery.kinds import Plugin
from protofl_flower.deployment import keys, node_process, programs, server_process, service_files
from protofl_flower.deployment.deployed_run import options_of, real_options
from protofl_flower.deployment.federation_file import Federation, NodeEntry, read_federation
from protofl_flower.deployment.node_process import cause_in, check_clock, look_at
from protofl_flower.files import folder_lock
from protofl_flower.node.local_data import LocalData
from protofl_flower.node.policy import Policy

needs_keys = pytest.mark.skipif(
    find_spec("cryptography") is None, reason="cryptography is not installed (extra: flower)"
)
needs_flower = pytest.mark.skipif(
    find_spec("flwr") is None, reason="Flower is not installed (extra: flower)"
)


def test_a_federation_is_read_as_it_was_written(tmp_path):
    nodes = [NodeEntry("clinic", "key 1", (0, 2), "cnn4"), NodeEntry("hospital", "key 2", (1,))]
    form = {"sample": "12", "classes": "cat,dog", "vocabulary": 50}
    made = Federation(tmp_path, 9200, "fl.example.org:443", nodes, form)
    made.write()
    assert read_federation(tmp_path) == made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "port is None"),
        ('port = 70000\npublic = "x:1"', "port is 70000"),
        ("port = 1", "public is None"),
        ('port = 1\npublic = "x:1"\nhost = 1', "unknown key host"),
        ('port = 1\npublic = "x:1"\ndata = 3', "data is 3"),
        ('port = 1\npublic = "x:1"\n[data]\nsample = "1x8x8"', "[data] has sample"),
        ('port = 1\npublic = "x:1"\n[data]\nsample = "8"\nclasses = ["a,b"]', "has a comma"),
        ('port = 1\npublic = "x:1"\n[[node]]\nname = "a"', "expected the keys"),
        ('port = 1\npublic = "x:1"\n[[node]]\nname = "../a"\nkey = "k"\nclients = [0]', "'../a'"),
        (
            'port = 1\npublic = "x:1"\n[[node]]\nname = "a"\nkey = "k"\nclients = [0]\n'
            '[[node]]\nname = "b"\nkey = "l"\nclients = [0]',
            "b and a have the same client 0",
        ),
        (
            'port = 1\npublic = "x:1"\n[[node]]\nname = "a"\nkey = "k"\nclients = [0]\n'
            '[[node]]\nname = "b"\nkey = "k"\nclients = [1]',
            "b and a have the same key",
        ),
    ],
)
def test_a_wrong_federation_file_is_refused(tmp_path, text, words):
    (tmp_path / "federation.toml").write_text(text)
    with pytest.raises(pf.UsageError) as caught:
        read_federation(tmp_path)
    assert words in str(caught.value)


def test_nodes_say_what_a_run_trains_on(tmp_path):
    form = {"sample": "1x8x8", "classes": "10"}
    nodes = [NodeEntry("a", "k", (1,), "cnn4"), NodeEntry("b", "l", (0, 2), "3")]
    made = Federation(tmp_path, 9200, "x:1", nodes, form)
    own = {"dataset": "nodes", "options": {"dataset": form}}
    assert options_of(made, {}) == {**own, "architectures": ["3", "cnn4", "3"]}
    assert options_of(made, {"architectures": "0,1,2"}) == own
    assert options_of(replace(made, nodes=[NodeEntry("a", "k", (0,))]), {"dataset": "digits"}) == {}
    with pytest.raises(pf.UsageError, match="c has no architecture in federation"):
        options_of(replace(made, nodes=[*nodes, NodeEntry("c", "m", (3,))]), {})


def test_options_that_simulate_what_is_real_are_refused():
    with pytest.raises(pf.UsageError, match="--over-select 1 simulates devices"):
        real_options({"over_select": 1}, resume=False)
    with pytest.raises(pf.UsageError, match="a deployed run has its own"):
        real_options({"backend": "local"}, resume=False)
    found = real_options({"deadline": 9.0, "set": ["lambda=1"]}, resume=False)
    wanted = {"set": ["lambda=1", "backend.deadline=9.0"]}
    wanted |= {"on_lost_client": "skip", "on_bad_upload": "skip"}
    assert found == wanted


@needs_keys
def test_init_and_add_node_make_a_federation(cli, tmp_path):
    lab, node = tmp_path / "lab", tmp_path / "node"
    made = cli("deploy", "init", lab, "--public", "fl.example.org:443")
    assert made.exit_code == 0, made.output
    for name in ("server.key", "secret"):
        assert stat.S_IMODE((lab / name).stat().st_mode) == 0o600
    assert "location /v1/fleet/" in (lab / "proxy.conf").read_text()
    half = cli("deploy", "init", tmp_path / "half", "--public", "x:1", "--sample", "1x8x8")
    wrong = ("--public", "x:1", "--sample", "8x", "--classes", "3")
    for found in (half, cli("deploy", "init", tmp_path / "half", *wrong)):
        assert found.exit_code == 2
        assert not (tmp_path / "half").exists()
    again = cli("deploy", "init", lab, "--public", "fl.example.org:443")
    assert again.exit_code == 2
    assert "is not empty" in again.output
    made = cli("node", "init", node, "--server", "fl.example.org:443", "--client", "0")
    assert made.exit_code == 0, made.output
    made = cli("deploy", "add-node", lab, "clinic", node / "key.pub", "--client", "0")
    assert made.exit_code == 0, made.output
    assert [each.name for each in read_federation(lab).nodes] == ["clinic"]
    again = cli("deploy", "add-node", lab, "other", node / "key.pub", "--client", "1")
    assert again.exit_code == 2
    assert "have the same key" in again.output
    wrong = cli("deploy", "add-node", lab, "other", lab / "ca.crt", "--client", "1")
    assert wrong.exit_code == 2
    assert "is not a public key" in wrong.output


# --- what other machines reach --------------------------------------------------------------------


@needs_keys
def test_the_server_listens_on_loopback_alone(tmp_path, monkeypatch):
    """Flower's control API answers without a key, at the same port as that of the nodes."""

    class Started(Exception):
        pass

    def child(command, *_):
        commands.append(command)
        raise Started

    commands = []
    monkeypatch.setattr(server_process, "program", str)
    monkeypatch.setattr(server_process, "Child", child)
    made = server_process.make_federation(
        tmp_path / "lab", "fl.example.org:443", programs.free_port()
    )
    with pytest.raises(Started), server_process.running_server(made):
        pass
    (superlink,) = commands
    assert superlink[superlink.index("--host") + 1] == "127.0.0.1"
    assert not [word for word in superlink if word.endswith("-address")]
    assert made.address == f"127.0.0.1:{made.port}"


FOREIGN = (
    "/",
    "/v1/control/list-runs",
    "//v1/control/list-runs",
    "/v1/runtime/acquire-task",
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/..%2fcontrol/list-runs",
    "/V1/FLEET/pull-messages",
)
"""Paths of the server that no node needs."""


def test_the_proxy_names_the_paths_of_nodes_alone(tmp_path):
    service_files.write_server_files(Federation(tmp_path, 9200, "fl.example.org:443", []))
    text = (tmp_path / "proxy.conf").read_text()
    _, *places = text.split("    location ")
    assert [place.partition(" {")[0] for place in places] == ["/v1/fleet/", "/"]
    assert "{ return 403; }" in places[1]
    assert text.count("proxy_pass ") == 1
    assert "proxy_pass https://127.0.0.1:9200/v1/fleet/;" in places[0]


@needs_keys
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_the_proxy_refuses_all_other_paths(tmp_path):
    made = server_process.make_federation(
        tmp_path / "lab", f"localhost:{programs.free_port()}", programs.free_port()
    )
    passed = []

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self):
            passed.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", made.port), Answering)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.folder / "server.crt", made.folder / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with proxy(made, tmp_path / "nginx") as ask:
            assert ask("POST", "/v1/fleet/pull-messages") == 200
            assert ask("GET", "/v1/fleet/pull-messages") == 403
            assert [(path, ask("POST", path)) for path in FOREIGN] == [(p, 403) for p in FOREIGN]
            assert passed == ["/v1/fleet/pull-messages"]
            # nginx compares a path without dots and codes, and this is what the server must get.
            assert ask("POST", "/v1/control/list-runs%2f..%2f..%2ffleet/pull-messages") == 200
            assert passed == ["/v1/fleet/pull-messages"] * 2
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def proxy(federation, folder):
    """Run nginx with a federation's file in the block; yield a function that asks it."""
    (file, _) = service_files.write_server_files(federation)
    folder.mkdir()
    text = f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
    text += f"http {{ access_log off; include {file};\n"
    for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
        text += f"{name}_temp_path {folder}/{name};\n"
    (folder / "nginx.conf").write_text(text + "}\n")
    words = ["-p", folder, "-e", folder / "error.log", "-c", folder / "nginx.conf"]
    port = int(federation.public.rpartition(":")[2])
    context = ssl.create_default_context(cafile=str(federation.folder / "ca.crt"))

    def ask(method, path):
        with closing(HTTPSConnection("localhost", port, context=context, timeout=60)) as line:
            line.request(method, path)
            return line.getresponse().status

    child = programs.Child(["nginx", *map(str, words)], folder / "log", {**os.environ})
    try:
        programs.wait_for_port(port, child)
        yield ask
    finally:
        child.stop()


@needs_keys
def test_a_node_and_a_server_run_once(cli, tmp_path):
    """Two processes of a node would write the same files, and two servers the same database."""
    lab, node = tmp_path / "lab", tmp_path / "node"
    cli("deploy", "init", lab, "--public", "127.0.0.1:1")
    cli("node", "init", node, "--server", "127.0.0.1:1", "--client", "0")
    (node / "ca.crt").write_bytes((lab / "ca.crt").read_bytes())
    with folder_lock(node, "node"), folder_lock(lab, "federation"):
        for found in (cli("node", "start", node), cli("deploy", "server", lab)):
            assert found.exit_code == 2
            assert "another process uses this folder" in found.output
    assert not (node / "logs").exists()


@needs_keys
def test_node_check_says_what_is_wrong(cli, tmp_path):
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        free = door.getsockname()[1]
    node = tmp_path / "node"
    cli("node", "init", node, "--server", f"127.0.0.1:{free}", "--client", "0")
    os.chmod(node / "key", 0o644)
    with open(node / "node.toml", "a") as file:
        file.write("method = 1\n")
    found = cli("node", "check", node)
    assert found.exit_code == 2
    assert "unknown rule [policy] method" in found.output
    assert "can be read by others" in found.output
    assert "ca.crt is missing" in found.output


@pytest.mark.parametrize(
    ("said", "words", "heals"),
    [
        (
            "SSL: CERTIFICATE_VERIFY_FAILED",
            "certificate is not of this ca.crt, or has expired",
            False,
        ),
        ("[2001] must be registered via the CLI", "knows no key of this node", False),
        ("[2004] Failed to activate SuperNode.", "the server refuses the key", True),
        ("[code: 2004] Failed to activate SuperNode.", "the server refuses the key", True),
        ("Connection attempt failed", "", True),
    ],
)
def test_a_node_says_why_the_server_refuses_it(said, words, heals):
    """The messages are those of Flower 1.41 and 1.42."""
    cause, again = cause_in(said)
    assert again == heals
    assert words in cause
    assert bool(words) == bool(cause)


APP = """
import subprocess, sys
from protofl_flower.protocol.transport import end_with_parent
sleep = "import time; print('here', flush=True); time.sleep(600)"
with subprocess.Popen([sys.executable, "-c", sleep]) as run:
    end_with_parent(run)
"""

EXECUTOR = """
import subprocess, sys, time
with open(sys.argv[1], "w") as log:
    subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdout=log)
time.sleep(600)
"""

PARENT = """
import sys, time
from pathlib import Path
from protofl_flower.deployment.programs import Child
sleep = "import time; print('here', flush=True); time.sleep(600)"
Child([sys.executable, "-c", sleep], Path(sys.argv[1]))
time.sleep(600)
"""


@pytest.mark.parametrize("words", [[PARENT], [EXECUTOR, APP]], ids=["programs", "runs"])
def test_programs_end_with_a_command_that_is_killed(words, tmp_path):
    """Covers the programs of a command, and the run of a ServerApp whose SuperExec has ended."""
    log = tmp_path / "child.log"
    command = [sys.executable, "-c", words[0], str(log), *words[1:]]
    with subprocess.Popen(command, cwd=tmp_path) as parent:
        while not (log.exists() and log.read_text()):
            assert parent.poll() is None
            time.sleep(0.02)
        children = descendants(parent.pid)
        parent.kill()
    assert len(children) == len(words)
    for _ in range(1500):
        if not any(map(is_alive, children)):
            return
        time.sleep(0.02)
    for child in filter(is_alive, children):
        os.kill(child, signal.SIGKILL)
    pytest.fail("the program goes on")


def descendants(process):
    """Return the ids of all descendants of a process."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [each for child in map(int, children) for each in (child, *descendants(child))]


def is_alive(process):
    """Return True if a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@needs_keys
def test_node_check_names_an_expired_certificate(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "DAYS", -5 / 1440)
    lab, node = tmp_path / "lab", tmp_path / "node"
    cli("deploy", "init", lab, "--public", "localhost:443")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(lab / "server.crt", lab / "server.key")
    with socket.create_server(("localhost", 0)) as door:
        address = f"localhost:{door.getsockname()[1]}"
        cli("node", "init", node, "--server", address, "--client", "0")
        (node / "ca.crt").write_bytes((lab / "ca.crt").read_bytes())

        def answer():
            line, _ = door.accept()
            with suppress(OSError), line:
                context.wrap_socket(line, server_side=True)

        end = threading.Thread(target=answer)
        end.start()
        found = cli("node", "check", node)
        end.join()
    assert found.exit_code == 2
    assert f"the certificate of {address} is refused: certificate has expired" in found.output


@needs_keys
@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        (600, r"60\d s ahead of the server's"),
        (-605, r"60\d s behind the server's"),
        (2, ""),
        (-200, ""),
    ],
)
def test_a_clock_that_the_server_refuses_is_named(cli, tmp_path, ahead, words):
    """With such a clock, Flower's programs end without a message."""
    lab, node = tmp_path / "lab", tmp_path / "node"
    cli("deploy", "init", lab, "--public", "localhost:443")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(lab / "server.crt", lab / "server.key")

    class Answering(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(404)
            self.end_headers()

        def date_time_string(self, timestamp=None):
            return formatdate(time.time() - ahead, usegmt=True)

        def log_message(self, *words):
            pass

    with HTTPServer(("localhost", 0), Answering) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"localhost:{server.server_port}"
        cli("node", "init", node, "--server", address, "--client", "0")
        (node / "ca.crt").write_bytes((lab / "ca.crt").read_bytes())
        found = cli("node", "check", node)
        if words:
            with pytest.raises(pf.UsageError, match=words):
                check_clock(look_at(address, node / "ca.crt")[1])
        server.shutdown()
    assert re.search(words or f"{address} answers", found.output)


def test_a_rehearsal_has_rounds(cli):
    """Without rounds two runs differ, so a rehearsal would have nothing to compare."""
    found = cli("deploy", "rehearse", "fedproto", "--models", "cnn4", "--schedule", "buffered")
    assert found.exit_code == 2
    words = " ".join(found.output.split())
    assert "--schedule buffered: a rehearsal compares every bit with a simulation" in words
    assert "protofl deploy run --schedule buffered" in words


@needs_flower
@pytest.mark.slow
def test_a_rehearsal_with_flower_equals_local(tmp_path):
    command = [sys.executable, "-c", "from protofl_cli.start import main; main()"]
    command += ["deploy", "rehearse", "fedproto", "--models", "cnn4", "--clients", "2"]
    command += ["--rounds", "1", "--local-epochs", "1", "--folder", str(tmp_path / "try")]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "clients  equal to local" in found.stdout
    assert not programs_of(tmp_path)


def programs_of(folder):
    """Return the command lines of processes that contain the path of a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = path.read_bytes()
            found += [command] if str(folder).encode() in command else []
    return found


@needs_keys
def test_an_error_names_the_taken_port(cli, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        made = cli("deploy", "init", tmp_path / "lab", "--public", "x:1", "--port", port)
        assert made.exit_code == 0, made.output
        found = cli("deploy", "server", tmp_path / "lab")
    assert found.exit_code == 2
    assert f"port {port} of this machine cannot be used" in " ".join(found.output.split())


def test_a_node_removes_what_it_left_when_it_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, owner in (("1", tmp_path / "a"), ("2", tmp_path / "b"), ("3", None)):
        place = tmp_path / f"{node_process.PREFIX}{name}"
        place.mkdir()
        if owner:
            (place / node_process.OWNER).write_text(str(owner))
    node_process.remove_left_places(tmp_path / "a")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["protofl-node-2", "protofl-node-3"]


def test_the_examples_of_a_new_node_work():
    """Every setting that is commented out, and the transform's options."""
    lines = node_process.settings_text("x:1", [0]).splitlines()
    text = "\n".join(re.sub(r"^# (?=[\w\[]+( =|\]))", "", line) for line in lines)
    found = tomllib.loads(text.replace('"npz:FILE"', '"digits"'))
    assert {*found["policy"]} == {f.name for f in fields(Policy)} - {"transforms", "models"}
    Policy.read(found["policy"])
    LocalData.read(found["data"], [0], Path())
    ((name, options),) = found["policy"]["required"].items()
    given = {"method": "fedproto", "models": "htcnn8", "clients": 4, "with": [name]}
    pf.backends.Plan.make(
        {k: v for k, v in given.items() if k != "with"}
        | {"transforms": [name], "options": {name: options}, "dataset": "digits"}
    )


@pytest.mark.parametrize(
    "words", ["deploy init made --public lab:1", "node init made --server lab:1 --client 0"]
)
def test_without_the_extra_a_command_says_what_to_install(cli, tmp_path, monkeypatch, words):
    monkeypatch.setattr(keys, "find_spec", lambda name: None)
    found = cli(*words.split())
    assert found.exit_code == 2 and "pip install 'protofl[flower]'" in found.stderr
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["deploy", "node"])
def test_help_is_read_without_an_import(name):
    module = importlib.import_module(f"protofl_flower.commands.{name}")
    plugin = Plugin("command", "x", "1.5", "theirs", f"{module.__name__}:app")
    assert summary(plugin) == (module.app.info.help, "Deploy")
