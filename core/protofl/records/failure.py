"""The error of a run whose training diverged, stored in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from protofl.errors import Diverged
from protofl.records.layout import FAILURE, is_run
from protofl.records.reading import Reading
from protofl.system.files.atomic import write_json
from protofl.system.machine import machine_facts
from protofl.system.version import versions


@dataclass(frozen=True)
class Failure:
    """Why a run ended. Its training diverged: with the same code, here, it will again.

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
        """The error."""
        return Diverged(self.what, self.near, self.do)


def read_failure(folder: Path) -> Failure | None:
    """Why a run ended; None where it didn't, or where it has come further since."""
    try:
        found = Reading(folder).failure
        return None if found is None else Failure(**found)
    except TypeError:  # of another version
        return None


def repeated_failure(folder: Path, device: str) -> Failure | None:
    """Why a run ended, where it would end so again here; None where it may come further.

    Args:
        folder: The run's folder.
        device: The kind of device on which it would go on.
    """
    found = read_failure(folder)
    return found if found is not None and found.machine == _here(device) else None


def _here(device: str) -> dict[str, str]:
    """What a failure may depend on beside the run."""
    return {"device": device, **versions(), **machine_facts()}


@contextmanager
def record_divergence(folder: Path, device: str) -> Iterator[None]:
    """Keep in a run's folder that its training diverged, if it does.

    Args:
        folder: The run's folder.
        device: The kind of device on which it trains.
    """
    try:
        yield
    except Diverged as error:
        with suppress(OSError):
            if is_run(folder):  # it has begun: nothing is left in a folder of the user's
                done = len(Reading(folder).rows)
                found = Failure(error.what, error.near, error.do, done, _here(device))
                write_json(folder / FAILURE, asdict(found))
        raise
    (folder / FAILURE).unlink(missing_ok=True)
