"""Output of all commands; the only module that imports rich, and only when needed."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from protofl_cli.standard_streams import encodes, shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table

SIGN_OF_LIFE = 10.0
"""Seconds between lines about work that goes on, where the output is not a terminal."""

PIPE_WIDTH = 100
"""Default width if standard output is not a terminal; COLUMNS overrides it."""

Row = Sequence[str]


def console(*, stderr: bool = False) -> Console:
    """Return the current terminal; texts are not interpreted as markup."""
    from rich.console import Console

    result = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not result.is_terminal and "COLUMNS" not in os.environ:
        result.width = PIPE_WIDTH
    return result


def plain(lines: Iterable[str]) -> None:
    """Print lines without wrapping, for other programs."""
    for line in lines:
        print(shown(line))


def text(line: str = "", style: str = "") -> None:
    """Print a wrapped line or paragraph."""
    console().print(shown(line), style=style or None)


def line(content: str, style: str = "") -> None:
    """Print a line without wrapping."""
    console().print(shown(content), style=style or None, soft_wrap=True)


def heading(title: str, aside: str = "") -> None:
    """Print a heading."""
    from rich.text import Text

    aside = f"  {shown(aside)}" if aside else ""
    console().print(Text(shown(title), style="bold") + Text(aside, style="dim"))


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns; an empty name continues the previous one."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(f"  {shown(name)}", _cell(value))
    console().print(grid)


def table(
    columns: Row,
    rows: Iterable[Row],
    *,
    title: str = "",
    right: Iterable[str] = (),
    keep: Iterable[str] = (),
    sections: bool = False,
    wrap: bool = False,
) -> None:
    """Print a table.

    Args:
        columns: Headings; the first column is coloured.
        rows: Cells.
        title: Line above the table.
        right: Right-aligned columns.
        keep: Columns that are not wrapped.
        sections: True to group rows with equal first cells, separated by lines.
        wrap: True to wrap the first column too. Names of more than half the width are wrapped
            anyway, and such a heading is a line of its own: they would leave no room for figures.
    """
    rows, screen = [*rows], console()
    half = screen.width // 2
    if len(columns[0]) > half:
        line(columns[0], "dim")
        columns = [" ", *columns[1:]]  # another name than an empty heading has
    if not wrap and all(len(str(row[0])) <= half for row in rows):
        keep = [columns[0], *keep]
    else:
        keep = [column for column in keep if column != columns[0]]
    made, last = _table(columns, right, keep), None
    for row in rows:
        cells = list(row)
        if sections:
            if last not in (None, cells[0]):
                made.add_section()
            elif last == cells[0]:
                cells[0] = ""
            last = row[0]
        made.add_row(*map(_cell, cells))
    if title:
        screen.print(shown(title), style="bold")
    screen.print(made)
    screen.print()


def _table(columns: Row, right: Iterable[str], keep: Iterable[str]) -> Table:
    from rich import box
    from rich.table import Table

    made = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", padding=(0, 1)
    )
    for number, column in enumerate(columns):
        made.add_column(
            shown(column),
            justify="right" if column in set(right) else "left",
            no_wrap=column in {*keep},
            style="cyan" if number == 0 else "",
            overflow="fold",
        )
    return made


def _cell(value: str) -> Any:  # noqa: ANN401 - a string or rich's Text
    """Return a cell; states and empty counts have a colour."""
    from rich.text import Text

    styles = {"ok": "green", "broken": "red", "clash": "red", "unusable": "red", "·": "dim"}
    styles |= {"passed": "green", "failed": "bold red", "skipped": "yellow"}
    styles |= {"finished": "green", "going on": "cyan", "unfinished": "yellow", "damaged": "red"}
    styles |= {"diverged": "red"}
    return Text(shown(value), style=styles.get(value, "")) if type(value) is str else value


def error(what: str, near: str = "", do: str = "") -> None:
    """Print an error on standard error: what is wrong, similar names, and what to do."""
    from rich.text import Text

    screen = console(stderr=True)
    parts = (what, near, *do.splitlines())
    first, *others = (shown(" ".join(sentence.split())) for sentence in parts if sentence.strip())
    screen.print(Text("error: ", style="bold red") + Text(first, style="red"), soft_wrap=True)
    for other in others:
        screen.print(f"       {other}", soft_wrap=True)


def note(content: str) -> None:
    """Print a line about the command on standard error."""
    console(stderr=True).print(f"note: {shown(content)}", style="dim", soft_wrap=True)


def trace(problem: BaseException) -> None:
    """Print the traceback, with causes and the traceback of a worker."""
    passage(traceback.format_exception(problem))


def passage(texts: Iterable[str]) -> None:
    """Print texts on standard error without wrapping."""
    for content in texts:
        print(shown(content.rstrip("\n")), file=sys.stderr)


@contextmanager
def waiting(activity: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner during a step that takes seconds; without a terminal a line every ten seconds.

    Yields:
        A function that changes the text.
    """
    screen = console()
    if not screen.is_terminal:
        now, ended = [activity], threading.Event()

        def tell() -> None:
            begin = time.monotonic()
            while not ended.wait(SIGN_OF_LIFE):
                print(f"  {shown(now[-1])}, {time.monotonic() - begin:.0f} s", file=sys.stderr)

        threading.Thread(target=tell, daemon=True).start()
        try:
            yield now.append
        finally:
            ended.set()
        return
    with screen.status(shown(activity), spinner=_spinner()) as status:
        yield lambda activity: status.update(shown(activity))


def _spinner() -> str:
    return "dots" if encodes("⠋") else "line"


class Bars:
    """Live lines with bars at the bottom of a terminal; elsewhere only plain lines are printed."""

    def __init__(self) -> None:
        self._console = console()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    @property
    def live(self) -> bool:
        """True if live lines are shown."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def show(self, label: str, status: str, share: float | None = None, key: str = "") -> None:
        """Show or update a live line.

        Args:
            label: Text before the bar.
            status: Text after the bar.
            share: Finished share, 0 to 1; None if unknown.
            key: Identifies the line; new lines are added at the bottom.
        """
        if not self.live:
            return
        if self._progress is None:
            self._progress = self._start()
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task("", total=None, status="")
        label, status, total = shown(label), shown(status), None if share is None else 1.0
        self._progress.update(
            self._tasks[key], description=label, status=status, total=total, completed=share or 0.0
        )

    def drop(self, key: str) -> None:
        """Remove a live line."""
        if self._progress is not None and key in self._tasks:
            self._progress.remove_task(self._tasks.pop(key))

    def line(self, content: str, style: str = "") -> None:
        """Print a line above the live lines."""
        target = self._progress.console if self._progress else self._console
        target.print(shown(content), style=style or None, soft_wrap=True)

    def stop(self) -> None:
        """Remove all live lines."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
            self._tasks.clear()

    def _start(self) -> Progress:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        progress = Progress(
            SpinnerColumn(_spinner()),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[status]}", markup=False),
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        progress.start()
        return progress
