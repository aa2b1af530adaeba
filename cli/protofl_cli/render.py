"""What is printed and how it looks; the only module that imports rich, and only when needed."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table

PIPE_WIDTH = 100
"""Columns where standard output is no terminal and COLUMNS does not say otherwise."""

Row = Sequence[str]


def utf8_or_marks() -> None:
    """Print a mark where the terminal's encoding lacks a character, rather than failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def is_closed_pipe(problem: BaseException) -> bool:
    """Whether it says that the reader of what is printed has gone, as ``head`` does.

    Nothing more is written then, at the end of the program neither.
    """
    if isinstance(problem, SystemExit):  # what rich makes of it
        return isinstance(problem.__context__, BrokenPipeError)
    if not isinstance(problem, BrokenPipeError):
        return False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            return True
    return False


def console(*, stderr: bool = False) -> Console:
    """The terminal as it is now; nothing in a text is taken for markup."""
    from rich.console import Console

    found = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found.width = PIPE_WIDTH
    return found


def plain(lines: Iterable[str]) -> None:
    """Lines for a program to read: as they are, whatever the width."""
    for line in lines:
        print(line)


def text(line: str = "", style: str = "") -> None:
    """A line or a paragraph for a person, wrapped."""
    console().print(line, style=style or None)


def line(content: str, style: str = "") -> None:
    """A line that stays one line."""
    console().print(content, style=style or None, soft_wrap=True)


def heading(title: str, aside: str = "") -> None:
    """The heading of a page."""
    from rich.text import Text

    console().print(Text(title, style="bold") + Text(f"  {aside}" if aside else "", style="dim"))


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Names and what they are, in two columns; a name may be empty to continue the last."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(f"  {name}", _cell(value))
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
    """A table.

    Args:
        columns: Headings; the first column is set off.
        rows: Cells.
        title: A line above it.
        right: Columns of numbers.
        keep: Columns that are never wrapped.
        sections: Whether a rule separates rows whose first cells differ; equal ones are shown
            once.
        wrap: Whether the first column is text that may be wrapped, rather than a name.
    """
    made = _table(columns, right, keep if wrap else (columns[0], *keep))
    last = None
    for row in rows:
        cells = list(row)
        if sections:
            if last not in (None, cells[0]):
                made.add_section()
            elif last == cells[0]:
                cells[0] = ""
            last = row[0]
        made.add_row(*map(_cell, cells))
    screen = console()
    if title:
        screen.print(title, style="bold")
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
            column,
            justify="right" if column in set(right) else "left",
            no_wrap=column in {*keep},
            style="cyan" if number == 0 else "",
            overflow="fold",
        )
    return made


def _cell(value: str) -> Any:  # noqa: ANN401 - a string or rich's Text
    """A cell; the words of a status and an empty count have a colour."""
    from rich.text import Text

    styles = {"ok": "green", "broken": "red", "clash": "red", "unusable": "red", "·": "dim"}
    styles |= {"passed": "green", "failed": "bold red", "skipped": "yellow"}
    styles |= {"finished": "green", "going on": "cyan", "unfinished": "yellow", "damaged": "red"}
    styles |= {"diverged": "red"}
    return Text(value, style=styles.get(value, ""))


def error(what: str, near: str = "", do: str = "") -> None:
    """An error on standard error: one line what, one line near misses, and what to do."""
    from rich.text import Text

    screen = console(stderr=True)
    parts = (what, near, *do.splitlines())
    first, *others = (" ".join(part.split()) for part in parts if part.strip())
    screen.print(Text("error: ", style="bold red") + Text(first, style="red"), soft_wrap=True)
    for other in others:
        screen.print(f"       {other}", soft_wrap=True)


def trace(problem: BaseException) -> None:
    """The whole traceback, causes and a worker's included."""
    traceback.print_exception(problem, file=sys.stderr)


def passage(texts: Iterable[str]) -> None:
    """Texts on standard error, as they are."""
    for content in texts:
        print(content, file=sys.stderr)


@contextmanager
def waiting(words: str) -> Iterator[None]:
    """A sign of life on a terminal while something takes seconds."""
    screen = console()
    if not screen.is_terminal:
        yield
        return
    with screen.status(words):
        yield


class Bars:
    """Live lines at the bottom of a terminal, each with a bar; elsewhere plain lines only."""

    def __init__(self) -> None:
        self._console = console()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    @property
    def live(self) -> bool:
        """Whether there is a terminal to draw on."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def show(self, key: str, label: str, status: str, share: float | None = None) -> None:
        """Draw a line anew.

        Args:
            key: By which it is found again; a new one stands below the others.
            label: What stands before the bar.
            status: What stands behind it.
            share: How much is done, 0 to 1; None where nobody knows.
        """
        if not self.live:
            return
        if self._progress is None:
            self._progress = self._start()
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task("", total=None, status="")
        total = None if share is None else 1.0
        self._progress.update(
            self._tasks[key], description=label, status=status, total=total, completed=share or 0.0
        )

    def drop(self, key: str) -> None:
        """Take a line away."""
        if self._progress is not None and key in self._tasks:
            self._progress.remove_task(self._tasks.pop(key))

    def line(self, content: str, style: str = "") -> None:
        """Print a line above the bars."""
        target = self._progress.console if self._progress else self._console
        target.print(content, style=style or None, soft_wrap=True)

    def stop(self) -> None:
        """Take the live lines away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
            self._tasks.clear()

    def _start(self) -> Progress:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[status]}", markup=False),
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        progress.start()
        return progress


class Bar:
    """One such line."""

    def __init__(self) -> None:
        self._bars = Bars()
        self.line, self.stop = self._bars.line, self._bars.stop

    @property
    def live(self) -> bool:
        """Whether there is a terminal to draw on."""
        return self._bars.live

    def show(self, label: str, status: str, share: float | None = None) -> None:
        """Draw the line anew; see `Bars.show`."""
        self._bars.show("", label, status, share)


def encodes(signs: str) -> bool:
    """Whether the terminal's encoding has signs."""
    try:
        signs.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


Board = tuple[Row, Sequence[Row], str]
"""Headings, rows, and a line below them."""


def board(make: Callable[[int], Board], right: Iterable[str]) -> None:
    """Print a board once.

    Args:
        make: Makes it for a width.
        right: Its columns of numbers.
    """
    screen = console()
    screen.print(_drawn(make(screen.width), right))


def _drawn(made: Board, right: Iterable[str]) -> Any:  # noqa: ANN401 - something to print
    from rich.console import Group
    from rich.text import Text

    columns, rows, below = made
    grid = _table(columns, right, [name for name in columns[1:] if name])
    for row in rows:
        grid.add_row(*map(_cell, row))
    return Group(*([grid] if rows else []), Text(below, style="dim"))


class Live:
    """A board that is drawn anew in its place, where there is a terminal.

    Args:
        right: Its columns of numbers.
    """

    def __init__(self, right: Iterable[str]) -> None:
        from rich.live import Live as _Live

        self._console, self._right = console(), [*right]
        self._live = _Live(console=self._console, auto_refresh=False)

    @property
    def draws(self) -> bool:
        """Whether there is a terminal to draw on."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def __enter__(self) -> Live:
        if self.draws:
            self._live.start()
        return self

    def __exit__(self, *problem: object) -> None:
        if self.draws:
            self._live.stop()

    def show(self, make: Callable[[int, int], Board]) -> None:
        """Draw the board anew.

        Args:
            make: Makes it for a width and a height.
        """
        self._live.update(_drawn(make(*self._console.size), self._right), refresh=True)
