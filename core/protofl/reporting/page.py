"""A page about runs, as a file: `report`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from protofl.errors import UsageError
from protofl.files.replacing import replacing
from protofl.folder.reading import runs_below
from protofl.recorded.run import Run, load_run
from protofl.reporting.drawing import Drawings
from protofl.reporting.one import page_of
from protofl.reporting.render import html
from protofl.version import __version__


def report(
    runs: Run | str | Path | Iterable[Run | str | Path],
    out: str | Path | None = None,
    *,
    title: str = "",
) -> str:
    """Write a page about runs: HTML in one file, which needs no network.

    Args:
        runs: Runs, their folders, or folders in which they lie. One run has a page of its own, of
            several there is one that compares them. They may be going on.
        out: The file to write, with whatever lies there replaced; none for the text alone.
        title: The page's heading, in place of one made of what the runs are.

    Returns:
        The page.

    Raises:
        UsageError: A folder holds no run, a file of one is damaged, or the page can't be written.

    Examples:
        >>> pf.report("runs/first", "first.html")  # doctest: +SKIP
    """
    found = runs_in([runs] if isinstance(runs, (Run, str, Path)) else runs)
    drawings = Drawings()
    foot = f"Made by protofl {__version__} on {datetime.now():%Y-%m-%d at %H:%M}."
    if len(found) == 1:
        page = page_of(found[0], drawings, foot)
    else:
        from protofl.reporting.several import page_of_all

        page = page_of_all(found, drawings, foot)
    page.title = title or page.title
    text = html(page, drawings)
    if out is not None:
        write(text, Path(out))
    return text


def runs_in(given: Iterable[Run | str | Path]) -> list[Run]:
    """The runs that are given, or lie in the folders that are; each once.

    Raises:
        UsageError: A folder isn't there, or holds no run; one tells of no run.
    """
    found: dict[Path, Run] = {}
    for one in given:
        if isinstance(one, Run):
            found.setdefault(one.folder.resolve(), one)
            continue
        folder = Path(one).expanduser()
        below = list(runs_below(folder)) if folder.is_dir() else []
        for path in below or [folder]:  # a folder without runs is refused when it is opened
            found.setdefault(path.resolve(), load_run(path))
    if not found:
        raise UsageError("no run is given", do="give the folder of a run, or one with runs in it")
    return list(found.values())


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
