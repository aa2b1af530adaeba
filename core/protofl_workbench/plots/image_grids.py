"""Generated images of a run by round and class, or of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np
import numpy.typing as npt

from protofl.errors import UsageError
from protofl_workbench.comparing.run_groups import RunLike, run_in
from protofl_workbench.plots.style import Style, StyleOptions, hide_frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofl_workbench.recorded.observed import Observed

Pictures = Mapping[int, npt.NDArray[np.uint8]]
"""{class: image [channels, height, width]}."""


def images(
    run: RunLike,
    rounds: list[int] | None = None,
    trial: int = 0,
    *,
    classes: Sequence[int] | None = None,
    **style: Unpack[StyleOptions],
) -> Figure:
    """Draw the images that the server has sent: a row for each round, a column for each class.

    Args:
        run: A run with ``--observe images``, or its folder.
        rounds: The rounds, from 0; by default five of the run.
        trial: The trial.
        classes: The classes; all by default.
        **style: ``width``: ``column``, ``page`` (default) or inches; ``font``: ``serif`` or
            ``sans``.

    Raises:
        UsageError: No images were observed in one of the rounds.
    """
    loaded_run = run_in(run)
    if rounds is None:
        known = rounds_with_images(loaded_run, trial)
        steps = np.linspace(0, len(known) - 1, min(5, len(known))).round().astype(int)
        rounds = [known[step] for step in steps] or [-1]
    rows = {}
    for number in rounds:
        shown, pictures = _pictures(loaded_run.observed, number, trial)
        rows[f"round {shown + 1}"] = pictures
    return _grid(rows, loaded_run.split(trial).classes, classes, style)


def images_of_runs(
    runs: Mapping[str, RunLike],
    round: int = -1,
    trial: int = 0,
    *,
    classes: Sequence[int] | None = None,
    client: int | None = None,
    **style: Unpack[StyleOptions],
) -> Figure:
    """Draw generated images of several runs: a row for each run, a column for each class.

    FedKTL's Fig. 4 shows four generators in this way, below the images of a client.

    Args:
        runs: {label: a run with ``--observe images``, or its folder}, all on the same data.
        round: The round, from 0; -1 for the last observed round of each run.
        trial: The trial.
        classes: The classes; all by default.
        client: Client whose first training sample of each class is the first row. This needs the
            data.
        **style: ``width`` and ``font``, see `images`.

    Raises:
        UsageError: No run is given, no images were observed, or the client does not exist.
    """
    if not runs:
        raise UsageError("no run is given")
    loaded_runs = {label: run_in(run) for label, run in runs.items()}
    first = next(iter(loaded_runs.values()))
    rows: dict[str, Pictures] = {}
    if client is not None:
        client_images = own_images(first, client, trial)  # fails if there is no such client
        rows[first.split(trial).name_of(client)] = client_images
    rows |= {label: _pictures(run.observed, round, trial)[1] for label, run in loaded_runs.items()}
    return _grid(rows, first.split(trial).classes, classes, style)


def rounds_with_images(run: RunLike, trial: int = 0) -> list[int]:
    """Return the rounds, from 0, with observed images."""
    observed = run_in(run).observed
    return [r for r in observed.rounds(trial) if "images" in observed.kinds(r, trial)]


def own_images(run: RunLike, client: int, trial: int = 0) -> Pictures:
    """Return a client's first training sample of each of its classes, most frequent class first.

    Args:
        run: A run, or its folder.
        client: The client.
        trial: The trial.

    Raises:
        UsageError: There is no such client, or the data are missing.
    """
    plan = run_in(run).plan
    if not 0 <= client < plan.info.num_clients:
        raise UsageError(
            f"there is no client {client}", f"clients: 0 to {plan.info.num_clients - 1}"
        )
    rows = plan.split(trial).train(client)
    labels = plan.data.y[rows]
    counts = labels.bincount(minlength=plan.data.num_classes)
    x, shown = plan.data.x, {}
    low, high = map(float, x.aminmax()) if x.dtype.is_floating_point else (0.0, 255.0)
    for c in counts.argsort(descending=True, stable=True)[: int((counts > 0).sum())].tolist():
        image = (x[rows[labels == c][0]].float() - low) * (255 / max(high - low, 1e-12))
        shown[c] = image.round().byte().numpy()
    return shown


def _pictures(observed: Observed, round: int, trial: int) -> tuple[int, Pictures]:
    """Return the number of an observed round, and its images."""
    seen = observed.images(round, trial)
    return seen.round, dict(zip(seen.classes.tolist(), seen.images, strict=True))


def _grid(
    rows: Mapping[str, Pictures],
    names: Sequence[str],
    classes: Sequence[int] | None,
    style: StyleOptions,
) -> Figure:
    """Draw a row for each label and a column for each class; missing images are white."""
    look = Style(style.get("width", "page"), style.get("font", "serif"))
    columns = sorted({c for row in rows.values() for c in row}) if classes is None else [*classes]
    cell = (look.inches - 0.55) / len(columns)
    made, first = look.canvas((cell + 0.04) * len(rows) + 0.22)
    first.remove()
    axes = made.subplots(len(rows), len(columns), squeeze=False)
    for line, (label, pictures) in zip(axes, rows.items(), strict=True):
        for axis, c in zip(line, columns, strict=True):
            hide_frame(axis)
            if c in pictures:
                shown = pictures[c].transpose(1, 2, 0)
                grey = {"cmap": "gray", "vmin": 0, "vmax": 255} if shown.shape[2] == 1 else {}
                axis.imshow(shown.squeeze() if grey else shown, interpolation="nearest", **grey)
        line[0].set_ylabel(label, **look.text())
    for axis, c in zip(axes[0], columns, strict=True):
        axis.set_title(names[c][:12], pad=2, **look.text())
    return made
