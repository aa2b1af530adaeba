"""A page about runs, as a file: `report`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from protofl.comparing.groups import Given, runs_in
from protofl.errors import UsageError
from protofl.files.replacing import replacing
from protofl.folder.result import Result
from protofl.recorded.run import Run
from protofl.reporting.drawing import Drawings
from protofl.reporting.one import page_of
from protofl.reporting.parts import Page
from protofl.reporting.render import html
from protofl.version import __version__

if TYPE_CHECKING:
    from protofl.studies.result import StudyResult


def report(
    runs: Given | Iterable[Given] | StudyResult,
    out: str | Path | None = None,
    *,
    title: str = "",
) -> str:
    """Write a page about runs: HTML in one file, which needs no network.

    Args:
        runs: Runs, their folders, folders in which they lie or a sweep's, or what `pf.run`
            returned. One run has a page of its own, of several there is one that compares them.
            They may be going on. Or what `pf.reproduce` returned: ours beside the published
            figures, and the runs.
        out: The file to write, with whatever lies there replaced; none for the text alone.
        title: The page's heading, in place of one made of what the runs are.

    Returns:
        The page.

    Raises:
        UsageError: A folder holds no run, a file of one is damaged, or the page can't be written.

    Examples:
        >>> pf.report("runs/first", "first.html")  # doctest: +SKIP
    """
    drawings = Drawings()
    foot = f"Made by protofl {__version__} on {datetime.now():%Y-%m-%d at %H:%M}."
    page = _page(runs, drawings, foot)
    page.title = title or page.title
    text = html(page, drawings)
    if out is not None:
        write(text, Path(out))
    return text


def _page(about: Given | Iterable[Given] | StudyResult, drawings: Drawings, foot: str) -> Page:
    """The page of a study, of one run, or of several."""
    if not isinstance(about, (Run, Result, str, Path, Iterable)):
        from protofl.reporting.of_study import page_of_study

        return page_of_study(about, drawings, foot)
    each = [about] if isinstance(about, (Run, Result, str, Path)) else about
    found = {run.folder.resolve(): run for one in each for run in runs_in(one)}
    if not found:
        raise UsageError("no run is given", do="give the folder of a run, or one with runs in it")
    if len(found) == 1:
        return page_of(next(iter(found.values())), drawings, foot)
    from protofl.reporting.several import page_of_all

    return page_of_all([*found.values()], drawings, foot)


def write(text: str, path: Path) -> None:
    """Write a page; it takes its place in one step.

    Raises:
        UsageError: It can't be written.
    """
    try:
        with replacing(path.expanduser()) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path} can't be written: {error.strerror or error}", do="choose another file"
        ) from None
