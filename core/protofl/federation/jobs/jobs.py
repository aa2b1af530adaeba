"""Jobs and replies that a run and its hosts exchange, one class per operation.

Each consists of plain values and one blob of bytes. ``header()`` returns the values as JSON can
hold them, and ``from_header(header, blob)`` builds the same object again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from protofl.errors import RunFailure

M = TypeVar("M", bound="Message")


@dataclass(kw_only=True)
class Message:
    """A message between a run and its hosts.

    Attributes:
        blob: A payload's bytes; empty where there is none.
    """

    kinds: ClassVar[dict[str, type[Message]]] = {}

    blob: bytes = field(default=b"", repr=False)

    def __init_subclass__(cls) -> None:
        Message.kinds[cls.__name__] = cls

    def header(self) -> dict[str, Any]:
        """Return all values except the blob, as JSON can hold them."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "blob"}
        return {"kind": type(self).__name__, **values}

    @classmethod
    def from_header(cls: type[M], header: dict[str, Any], blob: bytes = b"") -> M:
        """Build the message that a header describes, with its blob.

        Raises:
            RunFailure: It described none of this kind.
        """
        try:
            values = {name: value for name, value in header.items() if name != "kind"}
            result = Message.kinds[header["kind"]](**values, blob=blob)
            if isinstance(result, cls):
                return result
        except (AttributeError, KeyError, TypeError):
            pass
        raise RunFailure(f"expected a {cls.__name__}, got: {str(header)[:200]!r}")


# --- jobs -----------------------------------------------------------------------------------------


class Job(Message):
    """A job for a host; ``str(job)`` describes it.

    Attributes:
        blob: Bytes that travel with the job, such as a download.
    """

    op: ClassVar[str]
    """The operation in a word."""

    def __str__(self) -> str:
        return self.op


@dataclass
class StartTrial(Job):
    """Forget all clients; those in ``files`` have trained before.

    Attributes:
        trial: The trial.
        files: {client: the file in which it lies}; they are read and never changed.
        parked: A folder for files of clients between their jobs, inside the run folder, so that
            it is there on machines that see that one; None for the system's temporary one.
        checks: {client: length and CRC-32 of its file} if the pool has `ClientFiles`.
        store: The storage of clients for hosts with ``--client-store auto``; empty if each of them
            chooses.
    """

    op = "start of a trial"

    trial: int
    files: dict[int, str] = field(default_factory=dict)
    parked: str | None = None
    checks: dict[int, list[int]] = field(default_factory=dict)
    store: str = ""

    def __post_init__(self) -> None:  # JSON has words as keys
        self.files = {int(client): path for client, path in self.files.items()}
        self.checks = {int(client): check for client, check in self.checks.items()}


@dataclass
class ClientJob(Job):
    """A job for one client.

    Attributes:
        client: The client.
    """

    client: int

    def __str__(self) -> str:
        return f"{self.op} of client {self.client}"


@dataclass
class RoundJob(ClientJob):
    """A job for one client in a round; the blob is the client's download.

    Attributes:
        round: The round.
        may_fail: Whether the round goes on without the client: a pool that loses the client
            answers `Absent`, and the client is what it was before the job.
    """

    round: int
    may_fail: bool = field(default=False, kw_only=True)

    def __str__(self) -> str:
        return f"{super().__str__()} in round {self.round + 1}"


@dataclass
class Train(RoundJob):
    """Train a client and return its upload; answered by `TrainReply`.

    Attributes:
        when: ``before_upload`` or ``after_server``: which phases of the method.
        keep_received: Whether the client has its download already.
        may_be_undone: Whether the client may have to be what it was before: after an error of a
            hook, or by an `Undo`.
        file: A file that takes the trained client, while the client itself stays what it was
            before, until a `Load` of the file; empty for none. It needs ``may_be_undone``.
    """

    op = "train"

    when: str = "before_upload"
    keep_received: bool = False
    may_be_undone: bool = False
    file: str = ""


class Undo(ClientJob):
    """Restore a client to its state before the `Train` that was its last job."""

    op = "undo"


@dataclass
class Evaluate(RoundJob):
    """Evaluate a client on its test samples without changing it; answered by `EvaluateReply`.

    Attributes:
        observe: Test samples whose features are wanted too, at most.
        epochs: Epochs for which it is trained on its own samples before, and not for long: then
            it is what it was.
        predictions: Whether the predicted and the true class of each test sample are wanted too.
    """

    op = "evaluate"

    observe: int = 0
    epochs: int = 0
    predictions: bool = False


@dataclass
class Save(ClientJob):
    """Write a client's weights and state to a file; answered by `Reply`, or by `SaveReply`.

    Attributes:
        path: The file; a plain name if the pool has `ClientFiles`.
    """

    op = "save"

    path: str


@dataclass
class Load(ClientJob):
    """Set a client to the content of a file, which stays as long as it is used."""

    op = "load"

    path: str


class Drop(ClientJob):
    """Drop a client: it has its initial state again."""

    op = "drop"


# --- replies --------------------------------------------------------------------------------------


@dataclass
class Reply(Message):
    """The reply of a host.

    Attributes:
        seconds: Seconds that the job took, by stage.
        profile: What a profiled host recorded of the job, as JSON.
        notes: Lines for the user.
        blob: Bytes that travel with the reply, such as an upload.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    profile: str = ""
    notes: list[str] = field(default_factory=list, kw_only=True)


@dataclass
class SaveReply(Reply):
    """The reply of a pool with `ClientFiles`: the file is written, durably.

    Attributes:
        size: Length of the file in bytes.
        crc: CRC-32 of these bytes (`zlib.crc32`).
    """

    size: int = 0
    crc: int = 0


@dataclass
class TrainReply(Reply):
    """The result of local training; the blob is the upload.

    Attributes:
        samples: Samples seen.
        sums: Sums of the loss terms over these samples, by label.
        floats: Floats of the upload.
    """

    samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    floats: int = 0


@dataclass
class Absent(Reply):
    """The reply for a client that is lost in a `RoundJob` with ``may_fail``.

    A client that is lost before its upload counts as if it had not been asked. One that is lost in
    a phase after the server's step keeps its upload. One that is lost in an evaluation is left out
    of the accuracy.

    Attributes:
        reason: ``failed``; or the pool's reason: ``deadline`` (no reply in time), ``left`` (not
            reachable), ``stale`` (its state is not that of the round before), ``refused`` (its
            owner does not allow the job). The run itself says ``skipped``, and in virtual time
            ``deadline``, ``late`` or ``left``.
        error: The error of the hook that failed.
    """

    reason: str = "failed"
    error: str = ""


@dataclass
class EvaluateReply(Reply):
    """The correct predictions on a client's test samples, and the number of these samples.

    The blob is what their scores count in the run's metrics, and features and predictions that are
    wanted.

    Attributes:
        correct: Test samples predicted rightly; of another task the points (`Task.points`).
        count: Test samples.
        train: The same two of the training samples, where they are measured.
        validation: The same two of the validation samples, where any are held out.
        balanced: The same two of equally many samples of each class, where they are measured.
    """

    correct: float = 0
    count: int = 0
    train: tuple[float, int] | None = None
    validation: tuple[float, int] | None = None
    balanced: tuple[float, int] | None = None


def of_client(job: Job) -> ClientJob:
    """Return a job that a pool yields, which is a client's."""
    assert isinstance(job, ClientJob), f"{job} concerns no client"
    return job
