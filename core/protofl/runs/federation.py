"""The federation loop: what happens in a round, in order. Where it happens is the backend's."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from protofl import functional
from protofl.cores import compute_threads
from protofl.errors import RunFailure, naming
from protofl.hosts.jobs import Job, Pool, Reply
from protofl.plan.plan import Plan
from protofl.profile.timeline import Timeline, spans_of
from protofl.randomness import global_stream, numpy_stream
from protofl.runs import events
from protofl.runs.events import Progress
from protofl.runs.record import RunFolder
from protofl.views.records import Cards, ServerRecord
from protofl.views.server import Server
from protofl.wire.payload import Payload

AHEAD = 256 << 20
"""Bytes of different downloads that are prepared for an evaluation before it begins."""

STAGES = ("setup", "train", "prototypes", "payload", "server", "evaluate", "checkpoint", "total")


@dataclass
class Tally:
    """What a round adds up to."""

    samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    traffic: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("upload_floats", "upload_bytes", "download_floats", "download_bytes"), 0
        )
    )
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    accuracy: dict[int, tuple[int, int]] = field(default_factory=dict)
    skipped: list[int] = field(default_factory=list)

    def spend(self, seconds: Mapping[str, float]) -> None:
        """Book seconds by stage."""
        for stage, value in seconds.items():
            self.seconds[stage] += value

    def train_line(self) -> dict[str, Any]:
        """Losses, sample-weighted over the round."""
        terms = {label: value / max(self.samples, 1) for label, value in self.sums.items()}
        return {
            "train_loss": finite(sum(terms.values())),
            "loss_terms": {label: finite(terms[label]) for label in sorted(terms)},
        }

    def accuracy_line(self) -> dict[str, float | None]:
        """Accuracy over all test samples, and over clients."""
        shares = [correct / count for correct, count in self.accuracy.values() if count]
        if not shares:
            return dict.fromkeys(
                ("test_accuracy", "client_test_accuracy", "test_accuracy_std"), None
            )
        mean = sum(shares) / len(shares)
        total = sum(count for _, count in self.accuracy.values())
        return {
            "test_accuracy": sum(correct for correct, _ in self.accuracy.values()) / total,
            "client_test_accuracy": mean,
            "test_accuracy_std": (sum((s - mean) ** 2 for s in shares) / len(shares)) ** 0.5,
        }


class Federation:
    """A server, and a pool of hosts in which the clients live.

    Args:
        plan: The run.
        pool: The hosts.
        progress: Told of every client that is done.
        dry: Whether this is the dry step.
        timeline: Takes where the time goes, where the run is profiled.
        parked: A folder in which hosts may keep clients on disk; None for one of their own.
    """

    def __init__(
        self,
        plan: Plan,
        pool: Pool,
        progress: Progress | None = None,
        *,
        dry: bool = False,
        timeline: Timeline | None = None,
        parked: Path | None = None,
    ) -> None:
        self.plan, self.pool, self.dry, self._parked = plan, pool, dry, parked
        self._timeline, self._spans = timeline, spans_of(timeline)
        self._progress = progress or events.ignore
        pool.report = lambda line: self._progress(events.Note(line))
        self._after_server = any(
            phase.when == "after_server" for phase in plan.composition.phases(plan.info)
        )
        self.trial = 0
        self._noted: set[str] = set()
        self.server: ServerRecord
        self.holders: set[int] = set()
        """Clients that hold the download of the last round's end."""

    # --- a trial --------------------------------------------------------------------------------

    def start_trial(self, trial: int, files: Mapping[int, str] | None = None) -> None:
        """Set up the server and tell the hosts; ``files`` hold clients that trained before."""
        plan = self.plan
        self.trial = trial
        self.holders = set()
        split = plan.split(trial)
        self._sizes: list[int] = split.offsets.diff()[::2].tolist()
        layout = plan.info.architectures[0].channels_last
        test, public = None, plan.public_samples(trial, layout)
        if split.global_test is not None:
            test = plan.samples(split.global_test, layout)
        if self.dry:
            test, public = (s and s.first(plan.settings.batch_size) for s in (test, public))
        self.server = ServerRecord(
            info=plan.info,
            seed=plan.seed(trial),
            device=plan.device,
            lr=plan.settings.lr,
            configs=plan.composition.configs,
            architectures={
                a.name: a for a in (*plan.info.server_architectures, *plan.info.architectures)
            },
            cards=Cards(plan.info),
            public=public,
            test=test,
            images=plan.image_source(dry=self.dry),
            dry=self.dry,
        )
        view = Server(self.server, plan.composition.main)
        threads = compute_threads(plan.settings.server_threads)
        stream = global_stream(plan.seed(trial), "setup-server")
        with threads, stream, naming("setup_server"):
            started = plan.composition.lifecycle("setup_server", server=view)
        for knowledge in started.values():
            # The main method comes first, and what it starts with stays: a donor's server_train
            # does not replace the knowledge before it has run.
            own = self.server.knowledge.keys()
            fresh = {k: v for k, v in (knowledge or {}).items() if k == "classes" or k not in own}
            if fresh.keys() - {"classes"}:
                self.server.knowledge.merge(fresh)
        given = {str(client): path for client, path in (files or {}).items()}
        parked = None if self._parked is None else str(self._parked)
        values = {"trial": trial, "files": given, "parked": parked}
        self.pool.broadcast(Job("start_trial", values=values))

    def resume(self, folder: RunFolder) -> None:
        """Go back to a run's last committed round."""
        assert folder.commit is not None
        self.start_trial(folder.commit.trial, folder.committed_clients())
        folder.restore_server(self.server)
        self.holders = set(folder.commit.holders)

    def participants(self, round: int) -> list[int]:
        """The clients of a round, ascending: a share ρ of all, never fewer than one."""
        info = self.plan.info
        if info.participants >= info.num_clients:
            return list(range(info.num_clients))
        stream = numpy_stream(self.plan.seed(self.trial), "participants", round)
        chosen = stream.choice(info.num_clients, info.participants, replace=False)
        return sorted(int(c) for c in chosen)

    # --- a round --------------------------------------------------------------------------------

    def round(self, number: int) -> tuple[dict[str, Any], list[int]]:
        """One round.

        Returns:
            The round's line of ``metrics.jsonl`` without checkpoint times, and the clients that
            trained.

        Raises:
            RunFailure: A hook failed, or an upload is not finite.
        """
        # Payloads are read and written with as few threads as the server has: others would only
        # wait for the cores on which clients train.
        with compute_threads(self.plan.settings.server_threads):
            return self._round(number)

    def _round(self, number: int) -> tuple[dict[str, Any], list[int]]:
        start, tally = time.perf_counter(), Tally()
        self.server.round, self.server.evaluates = number, self._evaluates(number)
        # 1. Who takes part.
        clients = self.participants(number)
        # 2. What each downloads; 3. local training and upload, wherever the clients live.
        uploads = self._local_training(clients, number, tally)
        # 4. The server aggregates, then trains.
        self._server_step(uploads, tally)
        # 5. Phases that follow the server's step, with this round's download.
        if self._after_server:
            self._follow_up(clients, number, tally)
        # 6. Evaluation, each client with what it would download next.
        if self.server.evaluates:
            everyone = self.plan.settings.eval_clients == "all"
            chosen = range(self.plan.info.num_clients) if everyone else clients
            self._evaluate(chosen, number, tally)
        with self._spans.span("end_round", "server"), torch.no_grad():
            extra = self._extra()
        tally.seconds["total"] = time.perf_counter() - start
        line = {
            "trial": self.trial,
            "round": number,
            **tally.accuracy_line(),
            **tally.train_line(),
            **tally.traffic,
            "participants": len(clients),
            "evaluated": len(tally.accuracy),
            **({"skipped_uploads": tally.skipped} if tally.skipped else {}),
            "extra": extra,
            "seconds": {stage: round_to(tally.seconds[stage]) for stage in STAGES},
        }
        self.client_accuracy = {
            client: correct / count for client, (correct, count) in tally.accuracy.items() if count
        }
        return line, clients

    def _evaluates(self, number: int) -> bool:
        settings = self.plan.settings
        return (number + 1) % settings.eval_every == 0 or number + 1 == settings.rounds

    def _local_training(self, clients: list[int], number: int, tally: Tally) -> dict[int, Payload]:
        jobs, encoder = [], _Encoder()
        with self._spans.span("downloads", "server"):
            for client in self._alike_together(clients):
                holds = client in self.holders
                blob = b"" if holds else self._download(client, encoder, tally, counted=True)
                values = {"round": number, "when": "before_upload", "keep_received": holds}
                jobs.append(Job("train", client, values, blob))
        replies = self._carry_out("train", jobs, tally)
        uploads: dict[int, Payload] = {}
        with self._spans.span("uploads", "server"):
            for client in clients:
                reply = replies[client]
                tally.traffic["upload_bytes"] += len(reply.blob)
                tally.traffic["upload_floats"] += reply.values["floats"]
                begin = time.perf_counter()
                upload = Payload.from_bytes(reply.blob, self.plan.device)
                bad = upload.nonfinite()
                if bad is None:
                    uploads[client] = upload
                    self._add_losses(reply, tally)
                elif self.plan.settings.on_bad_upload == "skip":
                    tally.skipped.append(client)
                else:
                    raise RunFailure(
                        f"client {client} sent {bad!r} with NaN or infinity in round {number}",
                        "its training diverged",
                        "lower --lr, or leave such uploads out with --on-bad-upload skip",
                    )
                tally.spend({"payload": time.perf_counter() - begin})
        return uploads

    def _server_step(self, uploads: Mapping[int, Payload], tally: Tally) -> None:
        start, plan = time.perf_counter(), self.plan
        view = Server(self.server, plan.composition.main)
        if uploads:
            with global_stream(self.server.seed, "server", self.server.round):
                for hook in ("server_aggregate", "server_train"):
                    place = naming(f"{hook}, round {self.server.round}")
                    with self._spans.span(hook, "server"), place:
                        update = plan.composition.call(hook, server=view, uploads=uploads)
                    self.server.knowledge.merge(update)
        tally.spend({"server": time.perf_counter() - start})

    def _follow_up(self, clients: list[int], number: int, tally: Tally) -> None:
        jobs, encoder = [], _Encoder()
        for client in self._alike_together(clients):
            blob = self._download(client, encoder, tally, counted=True)
            jobs.append(Job("train", client, {"round": number, "when": "after_server"}, blob))
        replies = self._carry_out("train", jobs, tally)
        for client in clients:
            if client not in tally.skipped:
                self._add_losses(replies[client], tally)
        self.holders = set(clients)

    def _evaluate(self, clients: Sequence[int], number: int, tally: Tally) -> None:
        self._progress(events.StageStarted("evaluate", len(clients)))
        jobs: list[Job] = []
        encoder, held, last = _Encoder(), 0, b""
        for client in self._alike_together(clients):
            blob = self._download(client, encoder, tally, counted=False)
            held += len(blob) if blob is not last else 0
            jobs.append(Job("evaluate", client, {"round": number}, blob))
            last = blob
            # Where every client gets other bytes, those of all clients are never held at once.
            if held > AHEAD or len(jobs) + len(tally.accuracy) == len(clients):
                for scored, reply in self._replies("evaluate", jobs, tally).items():
                    tally.accuracy[scored] = reply.values["correct"], reply.values["count"]
                jobs, held = [], 0
        tally.accuracy = dict(sorted(tally.accuracy.items()))

    def _extra(self) -> dict[str, float | None]:
        composition, knowledge = self.plan.composition, self.server.knowledge
        extra: dict[str, float | None] = {}
        if "prototypes" in knowledge.keys():
            table, known = knowledge.table("prototypes", self.plan.info.num_classes)
            extra["prototype_margin"] = finite(float(functional.nearest_margin(table, known)))
        view = Server(self.server, composition.main)
        with naming(f"end_round, round {self.server.round}"):
            ended = composition.lifecycle("end_round", server=view)
        for found in ended.values():
            extra |= {key: finite(float(value)) for key, value in (found or {}).items()}
        return extra

    # --- pieces ---------------------------------------------------------------------------------

    def _alike_together(self, clients: Sequence[int]) -> list[int]:
        """Clients of one architecture behind each other: they often get the same bytes."""
        count = len(self.plan.info.architectures)
        return sorted(clients, key=lambda client: client % count)

    def _download(self, client: int, encoder: _Encoder, tally: Tally, *, counted: bool) -> bytes:
        start, composition = time.perf_counter(), self.plan.composition
        view = Server(self.server, composition.main)
        place = f"download_payload, client {client}, round {self.server.round}"
        with naming(place):
            found = composition.call("download_payload", server=view, client_id=client)
            payload = Payload(found)
        blob = encoder(payload)
        if counted:
            tally.traffic["download_floats"] += payload.floats
            tally.traffic["download_bytes"] += len(blob)
        tally.spend({"payload": time.perf_counter() - start})
        return blob

    def _carry_out(self, stage: str, jobs: list[Job], tally: Tally) -> dict[int, Reply]:
        self._progress(events.StageStarted(stage, len(jobs)))
        return self._replies(stage, jobs, tally)

    def _replies(self, stage: str, jobs: list[Job], tally: Tally) -> dict[int, Reply]:
        replies: dict[int, Reply] = {}
        for job, reply in self._deal(stage, jobs):
            assert job.client is not None
            replies[job.client] = reply
            tally.spend(reply.values["seconds"])
            for note in reply.values.get("notes", ()):
                if note not in self._noted:
                    self._noted.add(note)
                    self._progress(events.Note(note))
            self._progress(events.ClientDone(stage, job.client))
        return replies

    def _deal(self, stage: str, jobs: list[Job]) -> Iterator[tuple[Job, Reply]]:
        """Have the hosts do jobs, costly ones first."""
        jobs = self._costly_first(jobs)
        if self._timeline is None:
            yield from self.pool.run(jobs)
            return
        with self._timeline.stage(stage, jobs):
            for job, reply in self.pool.run(jobs):
                self._timeline.take(job, reply)
                yield job, reply

    def save_clients(self, clients: Iterable[int], paths: Mapping[int, str]) -> float:
        """Have hosts write clients; seconds that it took."""
        start = time.perf_counter()
        jobs = [Job("save", client, {"path": paths[client]}) for client in clients]
        for _ in self._deal("checkpoint", jobs):
            pass
        return time.perf_counter() - start

    def _costly_first(self, jobs: list[Job]) -> list[Job]:
        """The order in which jobs are dealt; it has no influence on results."""
        info = self.plan.info

        def cost(job: Job) -> float:
            assert job.client is not None
            return -self._sizes[job.client] * self.plan.cost(info.architecture_of(job.client))

        return sorted(jobs, key=cost)

    def _add_losses(self, reply: Reply, tally: Tally) -> None:
        tally.samples += reply.values["samples"]
        for label, value in reply.values["sums"].items():
            tally.sums[label] = tally.sums.get(label, 0.0) + value


class _Encoder:
    """Payloads to bytes; the same tensors again are not encoded again."""

    def __init__(self) -> None:
        self._last: tuple[tuple[tuple[str, int], ...], Payload, bytes] | None = None

    def __call__(self, payload: Payload) -> bytes:
        key = tuple((name, id(tensor)) for name, tensor in payload.items())
        if self._last is None or self._last[0] != key:
            self._last = key, payload, payload.to_bytes()
        return self._last[2]


def finite(value: float) -> float | None:
    """A number as the record holds it; NaN and infinity, which JSON has no word for, are null."""
    return value if math.isfinite(value) else None


def round_to(seconds: float) -> float:
    """Seconds with the digits that mean something."""
    return float(f"{seconds:.6g}")
