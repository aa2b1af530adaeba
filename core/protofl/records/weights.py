"""Weights that a run has kept."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl.errors import UsageError
from protofl.records.checkpoint import LAST, Commit, kept_name
from protofl.system.files.home import expand_user

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Weights:
    """Weights of the server and the clients at the end of a round.

    Attributes:
        trial: The trial.
        round: The round.
        server: The server's tensors by their names: ``global_state/NAME``, ``module/OWNER/NAME/*``.
        clients: {client: its tensors by their names}, ``model/*`` its weights, of the clients that
            have trained; others are what their seed made them.
    """

    trial: int
    round: int
    server: dict[str, Tensor]
    clients: dict[int, dict[str, Tensor]]


def read_weights(
    run: str | Path,
    which: str | int = "best",
    trial: int = 0,
    *,
    clients: Collection[int] | None = None,
) -> Weights:
    """Read the weights of a round that a run has kept (``--keep``, ``--keep-weights``).

    Args:
        run: The run folder.
        which: ``best``, the trial's best round; ``last``; or the number of a round, from 0.
        trial: The trial.
        clients: The clients whose weights are wanted; all by default.

    Raises:
        UsageError: The run has not kept them, or its backend keeps the clients' elsewhere.
        Damaged: They are not what was written.

    Examples:
        >>> weights = pf.read_weights("runs/first", "best")
        >>> weights.clients[0]["model/head.weight"].shape
        torch.Size([3, 64])
    """
    folder, commit = kept_round(run, which, trial, clients)
    return Weights(
        commit.trial,
        commit.round,
        _tensors(folder / commit.server),
        {c: _tensors(folder / name) for c, (name, _) in sorted(commit.client_files.items())},
    )


def kept_round(
    run: str | Path, which: str | int, trial: int, clients: Collection[int] | None
) -> tuple[Path, Commit]:
    """Return the folder and the files of a kept round, checked; see `read_weights`."""
    folder, commit = kept_commit(run, which, trial)
    files = {c: e for c, e in commit.client_files.items() if clients is None or c in clients}
    commit = replace(commit, client_files=files)
    require_here(folder.parent, commit)
    commit.require(folder)
    return folder, commit


def require_here(run: str | Path, commit: Commit) -> None:
    """Check that the clients' files of a kept round are in the run folder.

    Raises:
        UsageError: The backend keeps them.
    """
    if commit.client_files and commit.elsewhere:
        raise UsageError(
            f"{run}: the clients' weights are not in the run folder",
            "the hosts of the run's backend keep them, on the clients' own machines",
            "export one there: protofl node export; the server's weights are here: "
            "read_weights(RUN, clients=[])",
        )


def kept_commit(run: str | Path, which: str | int, trial: int) -> tuple[Path, Commit]:
    """Return the folder and the files of a kept round, before their checks; see `read_weights`."""
    folder = expand_user(run) / "checkpoint"
    last = Commit.read(folder / LAST)
    if isinstance(which, int):
        return folder, _commit_of_round(run, folder, last, trial, which)
    title = f"{which}-t{trial}"
    here = f"last-t{last.trial}" if last.server else ""
    if title == here:
        return folder, last.to_keep()
    if title in last.kept:
        return folder, Commit.read(folder / last.kept[title])
    raise UsageError(
        f"{run} has not kept {title}",
        f"it has kept: {', '.join(sorted(filter(None, {*last.kept, here}))) or 'nothing'}",
        "see --keep",
    )


def _commit_of_round(run: str | Path, folder: Path, last: Commit, trial: int, round: int) -> Commit:
    """Return the kept commit of a round, whatever it is kept for."""
    if last.server and (last.trial, last.round) == (trial, round):
        return last.to_keep()
    names = {*last.kept.values()}
    if (name := kept_name(trial, round)) in names:
        return Commit.read(folder / name)
    commits = [last, *(Commit.read(folder / name) for name in sorted(names))]
    rounds = sorted({c.round for c in commits if c.server and c.trial == trial})
    raise UsageError(
        f"{run} has not kept the weights of round {round + 1} of trial {trial} (Python: {round})",
        f"it has kept rounds: {', '.join(str(r + 1) for r in rounds) or 'none'}",
        "train again with --keep-weights rounds:R,R,… or every:N",
    )


def _tensors(path: Path) -> dict[str, Tensor]:
    from protofl.system.files.tensors import (
        read_tensors,  # with torch, which other readers don't need
    )

    packed: Any = read_tensors(path)
    return dict(packed[0])
