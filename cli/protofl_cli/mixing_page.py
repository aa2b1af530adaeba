"""The mixing matrix as tables of marks, and as the page ``docs/mixing.md``."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from protofl.testing.mixing import ADD, BESIDE, PLACES, REFUSED, RUNS, UNCLEAR, Cell

RUN_MARKS = {False: "✓", True: "1"}
UNCLEAR_MARK = "?"
_LETTERS = string.ascii_lowercase + string.ascii_uppercase

_INTRO = """\
# Mixing

Any hook of a round and any loss term can come from another method, and what several methods send
can be merged:

```bash
protofl run fedsa --models htcnn8 --use server_train=fedtgp
protofl run fedproto --models htcnn8 --add local_loss=fedsa.mcl
protofl run fml --models htcnn8 --add upload_payload=fedproto --add server_aggregate=fedproto \
  --add download_payload=fedproto --add local_loss=fedproto.align
```

`--use` takes a hook in the place of the main method's. `--add` keeps the main method's and merges
what both return, key by key: with the last command an auxiliary model *and* prototypes travel. A
key that two methods send is refused by its name, unless it tells of the client and both say the
same (`classes`, `counts`, `samples`). Where the rows of two methods are of other classes, those of
the second go by `NAME.classes`. What `upload_payload` and `download_payload` send can be merged,
and what `server_aggregate` and `server_train` give to the server's knowledge.

A combination runs, or is refused before training with the name of what it lacks and the methods
that could send it. This page shows which of them run with **one** change. One that is refused
often runs with two: who takes `inference` from `fedtgp` needs prototypes in the download, and takes
`download_payload` from a method that sends some. The error says which these are.

The page is written by `protofl matrix --out docs/mixing.md`, which takes every combination through
the dry step on a tiny federation with public data; a test holds it against the methods. Your own
method's row and column: `protofl matrix my-method`.
"""

_MARKS = {
    "✓": "it runs",
    "1": "it runs with clients of one architecture, which one of the two methods asks for",
}


class Marks:
    """A mark for every outcome; reasons get letters, the commonest first."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        counts = Counter(cell.reason for cell in cells if cell.outcome == REFUSED)
        ordered = sorted(counts, key=lambda reason: (-counts[reason], reason))
        self.counts = {reason: counts[reason] for reason in ordered}
        self._letters = dict(zip(ordered, _LETTERS, strict=False))

    def of(self, cell: Cell) -> str:
        """The mark of a cell."""
        if cell.outcome == RUNS:
            return RUN_MARKS[cell.alike]
        return self._letters.get(cell.reason, "~") if cell.outcome == REFUSED else UNCLEAR_MARK

    def legend(self) -> list[tuple[str, str, str]]:
        """Mark, reason and count of every reason."""
        return [
            (self._letters.get(reason, "~"), reason, str(count))
            for reason, count in self.counts.items()
        ]


def title(place: str) -> str:
    """A place as one types it."""
    if place in BESIDE:
        return f"--add {BESIDE[place]}=OTHER"
    return "--add local_loss=OTHER.TERM" if place == ADD else f"--use {place}=OTHER"


def counts(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """For each place and in all: combinations, and how many run, are refused, are unclear."""
    rows = []
    for place in PLACES:
        rows.append((f"`{title(place)}`", *_numbers([c for c in cells if c.place == place])))
    hooks = [cell for cell in cells if cell.place != ADD]
    rows.append(("**hooks in all**", *_numbers(hooks)))
    return rows


def _numbers(cells: Sequence[Cell]) -> tuple[str, ...]:
    found = Counter(cell.outcome for cell in cells)
    return tuple(f"{n:,}" for n in (len(cells), *(found[o] for o in (RUNS, REFUSED, UNCLEAR))))


def grid(cells: Iterable[Cell], place: str, marks: Marks) -> tuple[list[str], list[list[str]]]:
    """The marks of one place: the headings, and a row for every method that takes.

    For ``add`` rows are terms and columns the methods to which they are added, which are fewer.
    """
    found = {
        (c.donor, c.main) if place == ADD else (c.main, c.donor): marks.of(c)
        for c in cells
        if c.place == place
    }
    names, columns = (sorted({key[axis] for key in found}) for axis in (0, 1))
    rows = [[name, *(found.get((name, column), "") for column in columns)] for name in names]
    return columns, rows


def page(cells: Sequence[Cell]) -> str:
    """The whole page."""
    marks = Marks(cells)
    heads = ("", "combinations", "run", "refused", "unclear")
    legend = [*((f"`{m}`", words, "") for m, words in _MARKS.items())]
    legend += [(f"`{m}`", f"refused: {why}", n) for m, why, n in marks.legend()]
    parts = [
        _INTRO,
        "## How many\n",
        _markdown(heads, counts(cells)),
        "## Marks\n",
        _markdown(("mark", "meaning", "combinations"), legend),
        _WHY,
    ]
    for place in PLACES:
        columns, rows = grid(cells, place, marks)
        words = _ADDED if place == ADD else _BESIDE if place in BESIDE else _TAKEN
        parts += [f"## `{title(place)}`\n", words, _markdown(("", *columns), rows)]
    return "\n".join(parts)


_TAKEN = "Rows are the method that is run, columns OTHER, from which the hook is taken.\n"
_BESIDE = "Rows are the method that is run, columns OTHER, whose hook runs beside its own.\n"
_ADDED = "Rows are the added term OTHER.TERM, columns the method that is run.\n"
_WHY = """\
A lacking `key` is one that a hook reads and nobody sends or knows; a `shape` is one of a tensor
that came in another space; a `phase` is one of the donor's own, on public data, which the method
that is run does not have.
"""


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def read(text: str) -> list[Cell]:
    """The cells of a page; of a refusal what it lacks, not its message."""
    reasons = dict(re.findall(r"^\| `(\w)` \| refused: (.*?) \| ", text, re.MULTILINE))
    cells = []
    for place in PLACES:
        section = text.partition(f"## `{title(place)}`\n")[2].partition("\n## ")[0]
        heads, _, *rows = (_split(line) for line in section.splitlines() if line.startswith("|"))
        for name, *found in rows:
            for column, mark in zip(heads[1:], found, strict=True):
                if mark:
                    main, donor = (column, name) if place == ADD else (name, column)
                    cells.append(_cell(main, place, donor, mark, reasons))
    return cells


def _split(line: str) -> list[str]:
    return [part.strip() for part in line.strip("|").split("|")]


def _cell(main: str, place: str, donor: str, mark: str, reasons: Mapping[str, str]) -> Cell:
    for alike, run_mark in RUN_MARKS.items():
        if mark == run_mark:
            return Cell(main, place, donor, RUNS, alike)
    if mark not in reasons:
        return Cell(main, place, donor, UNCLEAR)
    words, name, _ = reasons[mark].split("`")
    lacks = "name" if words.startswith("both") else words.split()[-1]
    return Cell(main, place, donor, REFUSED, lacks=lacks, name=name)
