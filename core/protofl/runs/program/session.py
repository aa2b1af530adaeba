"""Sessions: many runs with the same workers."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from protofl.errors import UsageError
from protofl.records.folder.result import Result
from protofl.runs.program.run import carry_out
from protofl.system.machine import Idle

_PLACES = ("out", "resume", "config", "save_recipe", "reuse")


class Session:
    """Runs one after the other, whose workers stay between them.

    A worker process takes seconds to start, most of them for importing PyTorch; in a session the
    next run begins with those that are there. Results depend on none of it. A run that fails ends
    them, and the next one starts others. Workers have imported what is installed as it was then:
    begin another session where you change it; a class given by its file, ``"FILE.py:CLASS"``, is
    loaded anew when the file has changed.

    Of the backends that come with protofl ``process`` leaves its workers; ``local`` has none, and
    ``ray`` starts its actors anew.

    Args:
        **options: Options of all runs of the session (see `protofl.run`), which a run's own win
            over.

    Examples:
        >>> with pf.Session(models="htcnn8", workers=2) as session:  # doctest: +SKIP
        ...     for seed in range(10):
        ...         session.run("fedproto", seed=seed)
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - the options of a run
        self._options, self._idle = options, Idle()
        self._open = True

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, method: str | type | object | None = None, **options: Any) -> Result:  # noqa: ANN401
        """Train a federation, as `protofl.run` does.

        Args:
            method: A method or a recipe.
            **options: As `protofl.run` takes them, over those of the session.

        Raises:
            UsageError: Something asked for can't be done, or the session is closed.
            RunFailure: The run failed; finished rounds are in the folder.
        """
        if not self._open:
            raise UsageError("the session is closed", do="begin another one: protofl.Session()")
        given = {"method": method} if method is not None else {}
        options = {**self._options, **given, **options}
        own = {name: options.pop(name) for name in _PLACES if name in options}
        progress = options.pop("progress", True)
        try:
            return carry_out(options, progress=progress, idle=self._idle, **own)
        except BaseException:
            self._idle.close()  # a host may be in the middle of something
            raise

    def close(self) -> None:
        """End the workers."""
        self._open = False
        self._idle.close()
