"""The resident host of a node: it keeps clients, and does jobs that come through a Unix socket.

Started as ``python -m protofl_flower.node.host FOLDER SOCKET`` by ``protofl node start``.
FOLDER has ``node.toml``, and gets the clients' files. The host works in the main thread, which the
limit of a job needs. Rows, paths and tracebacks stay here: an error leaves as its words alone, and
its traceback goes to standard error.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import tomllib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import protofl as pf
from protofl_flower.fingerprints import changes_of, facts_of
from protofl_flower.node.client_files import NodeFiles, Stale
from protofl_flower.node.local_data import LocalData
from protofl_flower.node.noise_secret import node_secret, secret_of
from protofl_flower.node.policy import Policy, check_tell, plan_here
from protofl_flower.protocol import framing, messages
from protofl_flower.protocol.messages import Answer, MalformedMessage

PATIENCE = 60.0
"""Seconds that the pipe of a message may pause before it is given up."""

FIELDS = {
    "Train": ("round", "when", "keep_received", "may_fail", "may_be_undone"),
    "Evaluate": ("round", "observe", "epochs", "predictions", "may_fail"),
}
"""{kind of a job that a node does: its values beside the client}; all other jobs are refused."""


class Node:
    """A node: its policy, its clients' files and its host, which a plan brings.

    Args:
        folder: The folder of ``node.toml``.
        settings: The content of ``node.toml``.

    Raises:
        UsageError: A setting is unknown or wrong.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._runs, self._secret = folder / "runs", node_secret(folder)
        self._machine_options, self._clients, self._policy = read_settings(folder, settings)
        place = Path(self._machine_options["data_dir"])
        self._data = LocalData.read(settings.get("data"), sorted(self._clients), place)
        required = pf.backends.installed_transforms(self._policy.required or ())
        check_tell(self._data, required)
        self._digest, self._run, self._trial, self._plan = "", "", -1, ""
        self._host: pf.backends.Host | None = None
        self._files: NodeFiles | None = None
        self._facts: dict[str, str] = {}
        self._changes: list[str] = []
        self._private = False

    def respond(self, text: str, blobs: Sequence[bytes]) -> tuple[str, list[bytes]]:
        """Do what a request asks for; return the response."""
        try:
            asked = messages.read(text)
            if "sizes" in asked:
                return json.dumps({"sizes": self._sizes(asked)}), []
            check_request(asked)
            if asked.get("plan") != self._digest and "text" not in asked:
                return json.dumps({"lacks": "plan"}), []
            return self._do_all(asked, blobs)
        except Exception as error:
            return json.dumps({"failure": error_values(error)}), []

    def _do_all(self, asked: Mapping[str, Any], blobs: Sequence[bytes]) -> tuple[str, list[bytes]]:
        run = messages.matching(messages.RUN, asked.get("run"))
        if asked["plan"] != self._digest:
            self._take(asked["text"])
        if self._files is None or run != self._run:
            assert self._host is not None
            files = NodeFiles(self._runs, run, self._host)
            files.keep_plan(self._plan)
            self._changes += changes_of(self._runs / run, self._facts)
            self._files, self._run, self._trial = files, run, -1
        if not asked["jobs"]:
            changes, self._changes = self._changes, []
            return json.dumps({"facts": self._facts, "changes": changes}), []
        self._start(asked["trial"])
        self._files.keep(*messages.kept_in(asked))
        fresh = asked.get("fresh") is True
        return messages.response([self._answer(job, blobs, fresh) for job in asked["jobs"]])

    def _sizes(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Tell what the operator allows of the sizes of this node's data.

        Raises:
            UsageError: The node has no data of its own, or tells more than a transform of the run
                allows.
        """
        form, names = asked["sizes"], asked.get("transforms", [])
        if self._data is None:
            raise pf.UsageError(
                "this node has no data of its own",
                do='name them in node.toml: [data] and dataset = "npz:FILE"',
            )
        if not isinstance(form, dict):
            raise MalformedMessage(f"sizes is {messages.shown(form)}, expected a table")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise MalformedMessage(f"transforms is {messages.shown(names)}, expected names")
        check_tell(self._data, pf.backends.installed_transforms(names))
        with private_errors():
            return self._data.sizes(form)

    def _take(self, text: str) -> None:
        """Build the host of a plan."""
        self._host, self._files, self._digest = None, None, ""
        here = plan_here(text, self._machine_options, self._policy, self._data)
        with private_errors():
            data = None if self._data is None else self._data.of_plan(here)
        # A file that the plan names may be any file of the node, and errors may name its content.
        self._private = data is None and ":" in str(json.loads(here)["dataset"])
        with self._words():
            plan = pf.backends.Plan.from_json(here, data)
        # Again, because a server may ask for sizes without naming the transforms.
        check_tell(self._data, {m.name: m.plugin for m in plan.composition.transforms})
        self._host, self._facts = pf.backends.Host(plan, secret=self._secret), facts_of(plan)
        self._host.warm_up()
        self._plan, self._digest = here, messages.digest_of(text)

    def _words(self) -> AbstractContextManager[None]:
        """Return the context of work whose errors may tell of data that the plan names."""
        return private_errors() if self._private else nullcontext()

    def _start(self, trial: int) -> None:
        assert self._host is not None and self._files is not None
        if trial != self._trial:
            job = {"kind": "StartTrial", "trial": trial}
            with self._words():
                self._host.handle(pf.backends.Job.from_header(job))
            self._files.begin()
            self._trial = trial

    def _answer(self, asked: Mapping[str, Any], blobs: Sequence[bytes], fresh: bool) -> Answer:
        """Do a job; an error becomes its answer. A client that is lost may begin ``fresh``."""
        assert self._host is not None and self._files is not None
        try:
            job = self._job(asked, blobs)
        except MalformedMessage as error:
            return Answer(
                {"failure": error_values(pf.UsageError(f"the node refuses a job: {error}"))}
            )
        header, version = job.header(), ""
        client = header["client"]
        try:
            notes = self._set(client, asked.get("base"), fresh)
            # Uploads of two runs, plans or states must not have equal noise: it would cancel.
            base = "" if notes else str(asked.get("base"))  # a lost state began anew
            self._host.secret = secret_of(self._secret, self._run, self._digest, base)
            reply = self._host.handle(job)
            reply.notes += notes
            if reply.header()["kind"] == "TrainReply":
                version = self._files.write(client)
            elif header["kind"] == "Train":
                self._files.forget(client)
            elif not header["epochs"]:
                about = {"version": asked.get("base"), "trial": self._trial}
                self._files.evaluated(client, {**about, "round": header["round"]}, job.blob)
            reply_header = public_header(reply.header())
            if not self._policy.losses and "sums" in reply_header:
                reply_header["sums"] = {}
            return Answer(reply_header, reply.blob, version)
        except Stale as error:
            return Answer({"kind": "Absent", "reason": "stale", "notes": [str(error)]})
        except Exception as error:
            self._files.forget(client)
            return Answer({"failure": error_values(error)})

    def _set(self, client: int, base: object, fresh: bool) -> list[str]:
        """Set a client to the version on which its job builds; return lines for the user.

        Raises:
            Stale: The version is lost, and the client may not begin anew.
        """
        assert self._files is not None
        try:
            self._files.set(client, messages.matching(messages.VERSION, base))
        except Stale as error:
            if not fresh:
                raise
            self._files.set(client, "")
            return [f"{error}; it has its initial state again"]
        return []

    def _job(self, asked: Mapping[str, Any], blobs: Sequence[bytes]) -> pf.backends.Job:
        """Return the job that a request describes, of values that a node takes.

        Raises:
            MalformedMessage: The job is of another kind, for another client, or has other values.
        """
        header = asked.get("header")
        if not isinstance(header, dict) or header.get("kind") not in FIELDS:
            kind = header.get("kind") if isinstance(header, dict) else header
            raise MalformedMessage(f"{str(kind)[:40]!r} is neither Train nor Evaluate")
        client = header.get("client")
        if type(client) is not int or client not in self._clients:
            raise MalformedMessage(f"client {str(client)[:40]!r} is not on this node")
        if header.get("observe", 0) and not self._policy.observe:
            raise MalformedMessage("it asks for features (rule: [policy] observe)")
        if header.get("predictions") and not self._policy.observe:
            raise MalformedMessage("it asks for predictions (rule: [policy] observe)")
        if header["kind"] == "Evaluate":
            self._count_evaluation(client, header.get("round"), tuned=bool(header.get("epochs")))
        known = ("client", *FIELDS[header["kind"]])
        values = {name: header[name] for name in known if name in header}
        usual = {"when": str, "round": int, "observe": int, "epochs": int}
        for name, value in values.items():
            if name != "client" and type(value) is not usual.get(name, bool):
                raise MalformedMessage(f"{name} is {str(value)[:40]!r}")
        blob = messages.blob_at(asked.get("blob"), blobs)
        return pf.backends.Job.from_header({"kind": header["kind"], **values}, blob)

    def _count_evaluation(self, client: int, number: object, *, tuned: bool) -> None:
        """Count the evaluations of a client in a round, as each tells something of its data.

        Those of a client that is fine-tuned before are counted by themselves.

        Raises:
            MalformedMessage: There are more than the policy allows.
        """
        assert self._files is not None and self._host is not None
        rounds, most = self._host.plan.settings.rounds, self._policy.most_evaluations
        if type(number) is not int or not 0 <= number < rounds:
            raise MalformedMessage(f"round is {str(number)[:40]!r}, of {rounds}")
        if self._files.count_evaluation(client, self._trial, 2 * number + tuned) > most:
            raise MalformedMessage(
                f"more than {most} evaluations of client {client} after round {number + 1} "
                "(rule: [policy] most_evaluations)"
            )


def check_request(asked: Mapping[str, Any]) -> None:
    """Check the types of a request's values.

    Raises:
        MalformedMessage: One has another type.
    """
    kinds: dict[str, type] = {"run": str, "plan": str, "text": str, "trial": int, "jobs": list}
    for key, kind in kinds.items():
        if key in asked and type(asked[key]) is not kind:
            raise MalformedMessage(
                f"{key} is {messages.shown(asked[key])}, expected {kind.__name__}"
            )
    if not isinstance(asked.get("jobs"), list) or not all(
        isinstance(j, dict) for j in asked["jobs"]
    ):
        raise MalformedMessage("jobs is not a list of tables")


def read_settings(
    folder: Path, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[int], Policy]:
    """Return the options of this machine, the clients and the policy of ``node.toml``.

    Raises:
        UsageError: A setting is unknown or wrong.
    """
    known = ("clients", "data_dir", "device", "client_store", "policy", "server", "data")
    if unknown := sorted(settings.keys() - {*known}):
        raise pf.UsageError(
            f"node.toml: unknown setting {unknown[0]}", f"known: {', '.join(known)}"
        )
    clients = settings.get("clients")
    if not isinstance(clients, list) or not clients or any(type(c) is not int for c in clients):
        raise pf.UsageError(f"node.toml: clients is {clients!r}", do="write clients = [NUMBER, …]")
    machine_options = {
        "data_dir": str(settings.get("data_dir", folder / "data")),
        "device": str(settings.get("device", "cpu")),
        "client_store": str(settings.get("client_store", "memory")),
    }
    return machine_options, frozenset(clients), Policy.read(settings.get("policy", {}))


@contextmanager
def private_errors() -> Iterator[None]:
    """Keep on the node what an error says of its data: labels, files, shapes.

    Raises:
        UsageError: An error occurred; the node's log has its words.
    """
    try:
        yield
    except pf.ProtoflError as error:
        raise pf.UsageError(
            "its own data do not fit the run",
            do="the node's operator finds the reason in logs/host.log and with: protofl node check",
        ) from error


PLACE = re.compile(
    r"(?<=')~?/[^'\n]+(?=')|(?<=\")~?/[^\"\n]+(?=\")|(?<![\w.:/'\"])~?/[^\s'\",:;)\]]+"
)
"""A path from the root in the words of an error."""


def error_values(error: Exception) -> dict[str, Any]:
    """Return an error without its traceback, which is printed here, and without paths."""
    traceback.print_exception(error)
    sys.stderr.flush()
    values = pf.ProtoflError.to_values(error)
    return {**{key: without_paths(text) for key, text in values.items()}, "trace": ""}


def without_paths(text: str) -> str:
    """Return words without the places of this machine's files."""
    return PLACE.sub("PATH", text)


def public_header(header: dict[str, Any]) -> dict[str, Any]:
    """Return the header of a reply without what a profiled host recorded, and without paths."""
    public = {**header, "profile": "", "notes": [*map(without_paths, header["notes"])]}
    return {**public, "error": without_paths(public["error"])} if "error" in public else public


def serve(node: Node, path: Path) -> None:
    """Answer requests until the process is terminated."""
    with suppress(FileNotFoundError):
        path.unlink()
    mask = os.umask(0o177)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(path))
        os.umask(mask)
        door.listen()
        print("ready", flush=True)
        while True:
            line, _ = door.accept()
            try:
                _answer_one(node, line)
            except (OSError, EOFError):
                pass  # a ClientApp that was killed, or stopped
            except Exception:  # no message may end the host
                traceback.print_exc()


def _answer_one(node: Node, line: socket.socket) -> None:
    """Read a request and write the response.

    Errors leave the stream's block, too: its end writes what is left to the other side. The limit
    is for a pause of reading or writing.
    """
    line.settimeout(PATIENCE)
    with line, line.makefile("rwb") as made:
        stream = cast(BinaryIO, made)
        text, blobs = framing.receive(stream)
        framing.send(stream, *node.respond(text, blobs))


def main() -> None:
    """Read ``node.toml`` and serve."""
    folder, path = map(Path, sys.argv[-2:])
    # An exit as an exception may be lost in a callback. Files are whole or not there.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        node = Node(folder, tomllib.loads((folder / "node.toml").read_text("utf-8")))
    except (OSError, ValueError, pf.ProtoflError) as error:
        sys.exit(str(error))
    serve(node, path)


if __name__ == "__main__":
    main()
