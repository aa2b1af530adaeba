"""What an engine can't do it gives to ``eager``, and says why."""

from __future__ import annotations

from collections.abc import Callable

import protofl as pf

from protofl_plugins.engines.eager import Eager

Sums = list[dict[str, float]]


class Fallback:
    """Has clients trained in an engine's way, and by ``eager`` where that fails.

    What has failed once is not tried again: an architecture in a phase.

    Args:
        engine: The engine's name.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._failed: dict[tuple[str, str], str] = {}

    def train(self, jobs: list[pf.TrainJob], train: Callable[[list[pf.TrainJob]], Sums]) -> Sums:
        """The sums of each client's loss terms.

        Args:
            jobs: The clients.
            train: The engine's way; it leaves their weights as they were where it fails.
        """
        keys = {(job.architecture, job.phase.name) for job in jobs}
        if not keys & self._failed.keys():
            # What after_batch has collected by the time of a failure must not be collected twice.
            snapshots = [job.snapshot() for job in jobs]
            try:
                return train(jobs)
            except Exception as error:  # one that is the method's own comes again
                for restore in snapshots:
                    restore()
                if len(keys) == 1:
                    self._failed |= dict.fromkeys(keys, _reason(error))
        if len(keys) > 1:  # one of them is why
            return [sums for job in jobs for sums in self.train([job], train)]
        return self.by_eager(jobs, self._failed[keys.pop()])

    def by_eager(self, jobs: list[pf.TrainJob], why: str = "") -> Sums:
        """The sums of clients that are trained in the reference way; each is told why."""
        found = []
        for job in jobs:
            with job.stream():
                found.append(Eager().train(job, Eager.Config.model_validate({})))
            if why:
                note = f"engine {self._engine}: {job.architecture} is trained by eager: {why}"
                job.notes.append(note)
        return found


def _reason(error: BaseException) -> str:
    """The first line of an error, as a note gives it; two where the first only announces."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return text if len(text) <= 160 else text[:157] + "…"
