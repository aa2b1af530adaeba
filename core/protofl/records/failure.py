"""The error of a run whose training diverged, stored in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from protofl.errors import Diverged
from protofl.records.layout import FAILURE, is_run
from protofl.system.files.atomic import write_json
from protofl.system.machine import machine_facts
from protofl.system.version import versions


@dataclass(frozen=True)
class Failure:
    """The error of a run whose training diverged; the same code on the same machine diverges again.

    Attributes:
        what: What the error said.
        near: Its second line.
        do: Its third.
        done: Rounds that were done then, of all trials.
        machine: Device, versions and processor with which it was so.
    """

    what: str
    near: str
    do: str
    done: int
    machine: dict[str, str]

    @property
    def error(self) -> Diverged:
        """The failure as an exception."""
        return Diverged(self.what, self.near, self.do)


def read_failure(folder: Path) -> Failure | None:
    """Return the failure of a run; None if it did not diverge or has continued since."""
    from protofl.records.reading import Reading  # most runs do not diverge

    try:
        values = Reading(folder).failure
        return None if values is None else Failure(**values)
    except TypeError:  # of another version
        return None


def repeated_failure(folder: Path, device: str) -> Failure | None:
    """Return the failure of a run that would diverge again here; None if it may continue.

    Args:
        folder: The run's folder.
        device: The kind of device on which it would go on.
    """
    failure = read_failure(folder)
    return failure if failure is not None and failure.machine == _here(device) else None


def _here(device: str) -> dict[str, str]:
    """Return the facts about this machine that a failure may depend on."""
    return {"device": device, **versions(), **machine_facts()}


@contextmanager
def record_divergence(folder: Path, device: str) -> Iterator[None]:
    """Write a failure into the run folder if the training in the block diverges.

    Args:
        folder: The run's folder.
        device: The kind of device on which it trains.
    """
    try:
        yield
    except Diverged as error:
        from protofl.records.reading import Reading

        with suppress(OSError):
            if is_run(folder):  # it has begun: nothing is left in a folder of the user's
                rounds_done = len(Reading(folder).rows)
                failure = Failure(error.what, error.near, error.do, rounds_done, _here(device))
                write_json(folder / FAILURE, asdict(failure))
        raise
    (folder / FAILURE).unlink(missing_ok=True)
