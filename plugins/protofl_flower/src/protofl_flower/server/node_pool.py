"""The nodes of a federation as the hosts of a run.

A client belongs to its node: it is never moved and never trained elsewhere. All jobs of a stage for
the clients of a node travel in one message.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import protofl as pf
from protofl_flower.protocol import messages
from protofl_flower.protocol.messages import Answer, MalformedMessage, shown, without_data_sizes
from protofl_flower.protocol.transport import Delivery, Deployment, RemoteNode, printed
from protofl_flower.server.client_versions import Versions
from protofl_flower.server.node_reports import (
    absent,
    differences,
    failure_of,
    one_line,
    reason_of,
)
from protofl_flower.server.polling import FIRST, answers

REASONS = {1: "failed", 2: "failed", 3: "deadline", 4: "deadline", 5: "left", 6: "failed"}
REASONS |= {8: "failed"}
"""{code of a Flower error: reason for which the node's clients are absent}; ``failed`` for others,
which a node may have invented."""

MOST_NOTES = 200
"""Lines of a node that are shown in a run, at most."""

AWAY = ("Train", "Evaluate")
"""Kinds of jobs that are sent to nodes; the pool answers all others itself."""


class BackendOptions(Protocol):
    """Options of the backend, see `flower.Flower.Config`."""

    deadline: float
    patience: float
    start_deadline: float
    poll: float
    on_stale: Literal["skip", "stop", "fresh"]


@dataclass
class SentJobs:
    """Jobs of a client in training.

    Attributes:
        node: The client's node.
        jobs: The jobs.
        since: When they were sent.
        again: Whether they were sent again with the plan.
    """

    node: RemoteNode
    jobs: Sequence[pf.backends.Job]
    since: float
    again: bool = False


@dataclass
class NodePool:
    """The nodes of a federation, as the hosts of a run.

    Args:
        plan: The run.
        deployment: Where it takes place.
        config: Options of the backend.

    Attributes:
        report: Takes a line for the user.

    Raises:
        UsageError: A client has no node, or two.
    """

    plan: pf.backends.Plan
    deployment: Deployment
    config: BackendOptions
    _known: set[str] = field(default_factory=set)
    _notes: Counter[str] = field(default_factory=Counter)
    _sent: dict[str, SentJobs] = field(default_factory=dict)
    _lost_at_once: list[tuple[pf.backends.Job, pf.backends.Reply]] = field(default_factory=list)
    _quiet: tuple[float, float] = (0.0, FIRST)
    """Since when no node has answered, and after how many seconds a line says so."""

    def __post_init__(self) -> None:
        self.report: Callable[[str], None] = lambda line: None
        self._text = without_data_sizes(self.plan.to_json())
        self._digest = messages.digest_of(self._text)
        self._versions, self._trial = Versions(), 0
        self._home = {client: node for node in self.deployment.nodes for client in node.clients}
        places = [client for node in self.deployment.nodes for client in node.clients]
        clients = range(self.plan.info.num_clients)
        if sorted(places) != [*clients]:
            raise pf.UsageError(
                f"the nodes have the clients {sorted(places)}, the run has {len(clients)} clients",
                do="give each client to one node in federation.toml, or other --clients",
            )
        self._greeting = self._greet()
        next(self._greeting, None)  # sends; what comes back is read when the first trial starts

    # --- a pool ---------------------------------------------------------------------------------

    def broadcast(self, job: pf.backends.Job) -> None:
        """Start a trial: the nodes get it with their next jobs."""
        for _ in self._greeting:
            pass
        header = job.header()
        if header["kind"] == "StartTrial":
            self._trial = header["trial"]
            self._sent, self._lost_at_once = {}, []
            self._versions.start(header["files"], header["checks"])

    def present(self) -> set[int]:
        """Return the clients whose nodes are online."""
        online = self.deployment.transport.online()
        return {c for node in self.deployment.nodes if node.key in online for c in node.clients}

    def host_of(self, client: int) -> str:
        """Return the name of a client's node."""
        return self._home[client].name

    def keep_files(self, names: Collection[str]) -> None:
        """Keep files of clients; nodes get the names with their next jobs."""
        self._versions.keep(names)

    def run(
        self, jobs: Sequence[pf.backends.Job]
    ) -> Iterator[tuple[pf.backends.Job, pf.backends.Reply]]:
        """Send each node its jobs in one message, and yield the replies as they come.

        Raises:
            RunFailure: A client is lost, and the run does not go on without it.
        """
        away: dict[RemoteNode, list[pf.backends.Job]] = {}
        for job in jobs:
            header = job.header()
            if header["kind"] in AWAY:
                if header["kind"] == "Train":
                    self._versions.begin(header["client"])
                away.setdefault(self._home[header["client"]], []).append(job)
            else:
                yield job, self._versions.answer(header)
        yield from self._exchange(away)

    def close(self) -> None:
        """Do nothing: nodes outlive the run."""

    # --- clients in training ----------------------------------------------------------------------

    def send(self, jobs: Sequence[pf.backends.Job]) -> None:
        """Send a client its jobs in one message, and return at once."""
        client = jobs[-1].header()["client"]
        self._versions.begin(client)
        self._send_off(SentJobs(self._home[client], jobs, time.monotonic()))

    def busy(self) -> set[int]:
        """Return the clients of nodes that have not answered jobs which `send` has sent."""
        return {client for sent in self._sent.values() for client in sent.node.clients}

    def arrived(self, seconds: float) -> list[tuple[pf.backends.Job, pf.backends.Reply]]:
        """Return jobs that are done, or lost; wait until there is one, at most ``seconds``.

        Raises:
            RunFailure: A client is lost, and the run does not go on without it.
        """
        end = time.monotonic() + seconds
        while True:
            result, self._lost_at_once = self._lost_at_once, []
            transport = self.deployment.transport
            for delivery in transport.receive([*self._sent]) if self._sent else ():
                if delivery.ticket in self._sent:
                    result += self._arrived(self._sent.pop(delivery.ticket), delivery)
            now, limit = time.monotonic(), self.config.deadline
            late = [t for t, sent in self._sent.items() if limit and now - sent.since > limit]
            for sent in map(self._sent.pop, late):
                explanation = f"no reply within {limit:g} s"
                result += self._lost(sent.node, sent.jobs, "deadline", explanation)
            self._say_who_is_waited_for(now, answered=bool(result))
            if result or now >= end:
                return result
            time.sleep(min(self.config.poll, end - now))

    def _say_who_is_waited_for(self, now: float, *, answered: bool) -> None:
        """Name the nodes with clients in training, if none has answered for a while."""
        since, after = self._quiet
        if answered or not self._sent or not since:
            self._quiet = now, FIRST
        elif now - since > after:
            names = ", ".join(sent.node.name for sent in self._sent.values())
            self.report(f"waiting for {names} to answer: {now - since:.0f} s")
            self._quiet = since, 2 * after

    def _arrived(
        self, sent: SentJobs, delivery: Delivery
    ) -> Iterator[tuple[pf.backends.Job, pf.backends.Reply]]:
        """Yield the replies of a client in training; a node that lost its plan gets it again."""
        if not self._lacks_plan(delivery):
            yield from self._taken(sent.node, sent.jobs, delivery)
            return
        self._known.discard(sent.node.name)
        if sent.again:
            yield from self._lost(sent.node, sent.jobs, "failed", "it asks for the plan again")
            return
        sent.again = True
        self._send_off(sent)

    def _send_off(self, sent: SentJobs) -> None:
        """Send jobs; clients of a node that is not there are lost."""
        node, online = sent.node, self.deployment.transport.online()
        ticket = self._send(online[node.key], node, sent.jobs) if node.key in online else ""
        if ticket:
            self._sent[ticket] = sent
            return
        explanation = "Flower refused its message" if node.key in online else "it is not online"
        self._lost_at_once += self._lost(node, sent.jobs, "left", explanation)

    # --- messages -------------------------------------------------------------------------------

    def _greet(self) -> Iterator[None]:
        """Send every node the plan, pause, then wait until each has built its host.

        Raises:
            ProtoflError: A node is missing or refuses the plan, and the run needs it; or all nodes
                refuse the plan.
        """
        skip = self.plan.settings.on_lost_client == "skip"
        waiting, end = dict[str, RemoteNode](), time.monotonic() + self.config.patience
        missing = list(self.deployment.nodes)
        while True:
            online = self.deployment.transport.online()
            for node in [node for node in missing if node.key in online]:
                if ticket := self._send(online[node.key], node, []):
                    missing.remove(node)
                    waiting[ticket] = node
            awaited = {node.name for node in missing} - self.deployment.missing
            if not awaited or time.monotonic() > end:
                break
            time.sleep(min(1.0, self.config.poll * 5))
        yield
        names = ", ".join(node.name for node in missing)
        if missing and not skip:
            raise pf.RunFailure(
                f"not online after {self.config.patience:g} s: {names}",
                do="start the nodes, or go on without: --on-lost-client skip",
            )
        if missing:
            self.report(f"the run starts without {names}")
        refusals, pace = list[pf.ProtoflError](), (self.config.poll, self.config.start_deadline)
        for node, delivery in answers(
            self.deployment.transport, waiting, "the plan", *pace, self.report
        ):
            try:
                self._greeted(node, delivery)
            except pf.ProtoflError as error:
                refusals.append(error)
                if not skip:
                    raise
                problem = one_line(error).removeprefix(node.name).lstrip(": ")
                self.report(f"{node.name} did not take the plan: {problem}; the run starts without")
        if waiting:
            late = ", ".join(node.name for node in waiting.values())
            problem = f"no answer to the plan after {self.config.start_deadline:g} s: {late}"
            if not skip:
                raise pf.RunFailure(
                    problem,
                    do="look at the nodes' logs, raise --set backend.start_deadline=SECONDS, or go "
                    "on without: --on-lost-client skip",
                )
            self.report(f"the run starts without {late}: {problem}")
        if refusals and not self._known:
            raise refusals[0]

    def _greeted(self, node: RemoteNode, delivery: Delivery) -> None:
        """Take a node's response to the plan.

        Raises:
            ProtoflError: It did not take the plan.
        """
        response = self._opened(node, delivery)
        facts, changes = response.get("facts"), response.get("changes", [])
        if not isinstance(facts, dict) or not isinstance(changes, list):
            raise pf.RunFailure(f"{node.name} sent a wrong message: no facts of the plan")
        self._known.add(node.name)
        for line in differences(node, self.plan, facts):
            self.report(line)
        for line in changes[:20]:
            self.report(f"{node.name} has changed since the last round: {printed(line)}")

    def _send(self, node_id: int, node: RemoteNode, jobs: Sequence[pf.backends.Job]) -> str:
        """Send a node its jobs, or the plan alone; return the ticket, empty if Flower refused."""
        blobs = messages.Blobs()
        names, versions = self._versions.needed(node.clients)
        asked: dict[str, Any] = {
            "run": self.deployment.run,
            "plan": self._digest,
            "trial": self._trial,
            "names": names,
            "keep": versions,
            "fresh": self.config.on_stale == "fresh",
            "jobs": [],
        }
        if node.name not in self._known:
            asked["text"] = self._text
        for job in jobs:
            header = job.header()
            base = self._versions.now(header["client"])
            asked["jobs"].append({"header": header, "blob": blobs.add(job.blob), "base": base})
        group = f"round {jobs[-1].header()['round']}" if jobs else "plan"
        seconds = self.config.deadline if jobs else 0
        return self.deployment.transport.send(
            node_id, json.dumps(asked), blobs.parts, seconds, group
        )

    def _exchange(
        self, away: Mapping[RemoteNode, list[pf.backends.Job]]
    ) -> Iterator[tuple[pf.backends.Job, pf.backends.Reply]]:
        online = self.deployment.transport.online() if away else {}
        waiting, again = dict[str, RemoteNode](), set[str]()
        for node, jobs in away.items():
            ticket = self._send(online[node.key], node, jobs) if node.key in online else ""
            if ticket:
                waiting[ticket] = node
            else:
                explanation = (
                    "Flower refused its message" if node.key in online else "it is not online"
                )
                yield from self._lost(node, jobs, "left", explanation)
        pace, transport = (self.config.poll, self.config.deadline), self.deployment.transport
        for node, delivery in answers(transport, waiting, "its jobs", *pace, self.report):
            if self._lacks_plan(delivery):
                self._known.discard(node.name)
                # Once in a stage: a node that asks for ever would keep the run from going on.
                ticket = (
                    "" if node.name in again else self._send(online[node.key], node, away[node])
                )
                if ticket:
                    again.add(node.name)
                    waiting[ticket] = node
                else:
                    yield from self._lost(node, away[node], "failed", "it asks for the plan again")
                continue
            yield from self._taken(node, away[node], delivery)
        for node in waiting.values():
            explanation = f"no reply within {self.config.deadline:g} s"
            yield from self._lost(node, away[node], "deadline", explanation)

    @staticmethod
    def _lacks_plan(delivery: Delivery) -> bool:
        """Return True if a node that was restarted asks for the plan again."""
        with contextlib.suppress(MalformedMessage):
            return not delivery.code and messages.read(delivery.text).get("lacks") == "plan"
        return False

    def _opened(self, node: RemoteNode, delivery: Delivery) -> dict[str, Any]:
        """Return the content of a response.

        Raises:
            ProtoflError: It is an error of the node or of Flower.
        """
        if delivery.code:
            raise pf.RunFailure(f"{node.name}: {delivery.words}")
        try:
            result = messages.read(delivery.text)
        except MalformedMessage as error:
            raise pf.RunFailure(f"{node.name} sent a wrong message: {error}") from None
        if "failure" in result:
            raise failure_of(node, result["failure"])
        return result

    def _taken(
        self, node: RemoteNode, jobs: Sequence[pf.backends.Job], delivery: Delivery
    ) -> Iterator[tuple[pf.backends.Job, pf.backends.Reply]]:
        """Yield the replies of a delivery."""
        if delivery.code:
            reason, explanation = REASONS.get(delivery.code, "failed"), delivery.words
            if reason == "deadline" and self.config.deadline:  # Flower's speak of its database
                explanation = f"no reply within {self.config.deadline:g} s"
                explanation += f" (Flower's error {delivery.code})"
            yield from self._lost(node, jobs, reason, explanation)
            return
        try:
            response = self._opened(node, delivery)
        except pf.ProtoflError as error:
            if not all(job.header().get("may_fail") for job in jobs):
                raise
            self._known.discard(node.name)
            explanation = error.what.removeprefix(node.name).lstrip(": ")
            yield from self._lost(node, jobs, reason_of(error), explanation)
            return
        self._known.add(node.name)
        try:
            node_answers = messages.answers_in(response, delivery.blobs, len(jobs))
        except MalformedMessage as error:
            yield from self._lost(node, jobs, "failed", f"it sent a wrong message: {error}")
            return
        for job, answer in zip(jobs, node_answers, strict=True):
            yield job, self._reply(node, job, answer)

    def _reply(self, node: RemoteNode, job: pf.backends.Job, answer: Answer) -> pf.backends.Reply:
        """Return the reply to a job, and note the new version of its client.

        Raises:
            ProtoflError: The client is lost, and the run does not go on without it.
        """
        try:
            return self._sound(node, job, answer)
        except MalformedMessage as error:
            explanation = f"it sent a wrong answer: {printed(error)}"
            ((_, reply),) = self._lost(node, [job], "failed", explanation)
            return reply

    def _sound(self, node: RemoteNode, job: pf.backends.Job, answer: Answer) -> pf.backends.Reply:
        """Return the reply of an answer, as `_reply` does.

        Raises:
            ProtoflError: The client is lost, and the run does not go on without it.
            MalformedMessage: It is not an answer to this job.
        """
        asked = job.header()
        train, client = asked["kind"] == "Train", asked["client"]
        if answer.wrong:
            raise MalformedMessage(answer.wrong)
        if "failure" in answer.header:
            error = failure_of(node, answer.header["failure"])
            if asked.get("may_fail"):
                return absent(reason_of(error), error.what.removeprefix(f"{node.name}: "), node)
            raise error
        reply = answer.reply(("TrainReply" if train else "EvaluateReply", "Absent"))
        reply.notes = self._named(node, reply.notes)
        if isinstance(reply, pf.backends.Absent):
            left_out = train and self.plan.settings.on_bad_upload == "skip"
            if reply.reason == "skipped" and left_out and asked["when"] == "before_upload":
                return reply
            if reply.reason not in ("failed", "stale"):
                raise MalformedMessage(f"reason is {shown(reply.reason)}")
            if not isinstance(reply.error, str):
                raise MalformedMessage(f"error is {shown(reply.error)}, expected a text")
            reply.error = printed(reply.error)
            stale = reply.reason == "stale"
            if stale and (self.config.on_stale == "stop" or not asked.get("may_fail")):
                raise pf.RunFailure(
                    f"{node.name} does not have the last state of client {client}",
                    do="restore the node's folder runs and resume, or go on with: --on-stale fresh "
                    "(it has its initial state again) or --on-stale skip (without it)",
                )
            if not asked.get("may_fail"):
                raise pf.RunFailure(f"{node.name}, {job}: the client is absent ({reply.reason})")
        elif train:
            if not answer.version:
                raise MalformedMessage("version is empty, and the client has trained")
            if asked["file"]:
                self._versions.flown(client, asked["file"], answer.version)
            else:
                self._versions.trained(client, answer.version)
        return reply

    def _named(self, node: RemoteNode, notes: Sequence[str]) -> list[str]:
        """Return a node's notes with its name: a few of each answer, not too many in all."""
        left = MOST_NOTES - self._notes[node.name]
        result = [f"{node.name} says: {printed(note)}" for note in notes[: min(left, 5)]]
        self._notes[node.name] += len(result)
        if result and len(result) == left:
            result.append(f"{node.name}: its further notes are left out")
        return result

    def _lost(
        self, node: RemoteNode, jobs: Sequence[pf.backends.Job], reason: str, explanation: str
    ) -> Iterator[tuple[pf.backends.Job, pf.backends.Reply]]:
        """Yield that a node's clients are absent.

        Raises:
            RunFailure: The run does not go on without them.
        """
        for job in jobs:
            if not job.header().get("may_fail"):
                raise pf.RunFailure(
                    f"{node.name}, {job}: {explanation}",
                    do="resume when it is back, or go on without it: --on-lost-client skip",
                )
            yield job, absent(reason, explanation, node)
