"""Images that a server has generated, drawn by round and class, or of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from protofl.errors import UsageError
from protofl_workbench.plots.observations import names_of, observed_of
from protofl_workbench.plots.style import SMALL, canvas, inches_of, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofl.runs.reuse.run import Run

Pictures = Mapping[int, npt.NDArray[np.uint8]]
"""{class: image [channels, height, width]}."""


def images(
    run: Run | str | Path,
    rounds: list[int] | None = None,
    trial: int = 0,
    *,
    classes: Sequence[int] | None = None,
    width: str | float = "page",
    font: str = "serif",
) -> Figure:
    """Draw the images that the server has sent: a row for each round, a column for each class.

    Args:
        run: A run with ``--observe images``, or its folder.
        rounds: The rounds, from 0; five over the run where None.
        trial: The trial.
        classes: The classes; all where None.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: No images were observed in one of them.
    """
    if rounds is None:
        have = rounds_with_images(run, trial)
        steps = np.linspace(0, len(have) - 1, min(5, len(have))).round().astype(int)
        rounds = [have[step] for step in steps] or [-1]
    rows = {}
    for number in rounds:
        seen = observed_of(run).images(number, trial)
        rows[f"round {seen.round + 1}"] = _by_class(seen.images, seen.classes)
    return _grid(rows, names_of(run, trial), classes, width, font)


def images_of_runs(
    runs: Mapping[str, Run | str | Path],
    round: int = -1,
    trial: int = 0,
    *,
    classes: Sequence[int] | None = None,
    client: int | None = None,
    width: str | float = "page",
    font: str = "serif",
) -> Figure:
    """Draw generated images of several runs: a row for each, a column for each class.

    FedKTL's Fig. 4 shows four generators so, below a client's own images.

    Args:
        runs: {label: a run with ``--observe images``, or its folder}, of the same data.
        round: The round, from 0; -1 for the last that was observed of each.
        trial: The trial.
        classes: The classes; all where None.
        client: A client, whose first training sample of each class is shown above; None for none.
            The data have to be there for that.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: No run is given, none of its images were observed, or there is no such client.
    """
    if not runs:
        raise UsageError("no run is given")
    first = next(iter(runs.values()))
    rows = {}
    if client is not None:
        rows[f"client {client}"] = own_images(first, client, trial)
    for label, run in runs.items():
        seen = observed_of(run).images(round, trial)
        rows[label] = _by_class(seen.images, seen.classes)
    return _grid(rows, names_of(first, trial), classes, width, font)


def rounds_with_images(run: Run | str | Path, trial: int = 0) -> list[int]:
    """The rounds, from 0, of which a run has kept generated images."""
    observed = observed_of(run)
    return [r for r in observed.rounds(trial) if "images" in observed.kinds(r, trial)]


def own_images(run: Run | str | Path, client: int, trial: int = 0) -> Pictures:
    """A client's first training sample of each of its classes, those with most samples first.

    Args:
        run: A run, or its folder.
        client: The client.
        trial: The trial.

    Raises:
        UsageError: There is no such client, or the data are not there any more.
    """
    from protofl.runs.reuse.run import Run, load_run

    plan = (run if isinstance(run, Run) else load_run(run)).plan
    if not 0 <= client < plan.info.num_clients:
        raise UsageError(
            f"there is no client {client}", f"clients: 0 to {plan.info.num_clients - 1}"
        )
    rows = plan.split(trial).train(client)
    labels = plan.data.y[rows]
    counts = labels.bincount(minlength=plan.data.num_classes)
    x, shown = plan.data.x, {}
    low, high = (0.0, 255.0) if x.dtype.is_floating_point is False else map(float, x.aminmax())
    for c in counts.argsort(descending=True, stable=True)[: int((counts > 0).sum())].tolist():
        image = (x[rows[labels == c][0]].float() - low) * (255 / max(high - low, 1e-12))
        shown[c] = image.round().byte().numpy()
    return shown


def _by_class(pictures: npt.NDArray[np.uint8], classes: npt.NDArray[np.int64]) -> Pictures:
    return dict(zip(classes.tolist(), pictures, strict=True))


def _grid(
    rows: Mapping[str, Pictures],
    names: Sequence[str],
    classes: Sequence[int] | None,
    width: str | float,
    font: str,
) -> Figure:
    """A line for each of them, a column for each class; white where one has no image of it."""
    columns = sorted({c for row in rows.values() for c in row}) if classes is None else [*classes]
    inches = inches_of(width)
    cell = (inches - 0.55) / len(columns)
    made, first = canvas(width, (cell + 0.04) * len(rows) + 0.22, font)
    first.remove()
    axes = made.subplots(len(rows), len(columns), squeeze=False)
    for line, (label, pictures) in zip(axes, rows.items(), strict=True):
        for axis, c in zip(line, columns, strict=True):
            axis.set(xticks=[], yticks=[])
            for spine in axis.spines.values():
                spine.set_visible(False)
            if c in pictures:
                shown = pictures[c].transpose(1, 2, 0)
                grey = {"cmap": "gray", "vmin": 0, "vmax": 255} if shown.shape[2] == 1 else {}
                axis.imshow(shown.squeeze() if grey else shown, interpolation="nearest", **grey)
        line[0].set_ylabel(label, **words(font, SMALL))
    for axis, c in zip(axes[0], columns, strict=True):
        axis.set_title(names[c][:12], pad=2, **words(font, SMALL))
    return made
