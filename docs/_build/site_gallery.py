"""Make the pictures of docs/gallery.md by the commands on that page.

    python docs/_build/site_gallery.py             # type all commands; replace docs/images/gallery
    python docs/_build/site_gallery.py --rounds 2  # shorter runs, into the folder --out

The commands run in a temporary folder, in the order of the page. A file that a command writes with
``--out`` and that the page shows from ``images/gallery`` is copied there.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image  # comes with matplotlib
from typer.testing import CliRunner

from protofl_cli.app import app

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "gallery.md"
FOLDER = "images/gallery"
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DATA = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
"""Python that writes the files which commands read."""
SHOWN = re.compile(rf"\]\({FOLDER}/([\w.-]+)\)")
FROM_RECORDS = "--no-run"
"""Marks the command whose pictures are made from the records in the repository."""


def commands(page: str) -> list[list[str]]:
    """Return the words of each ``protofl …`` line of the page, without ``protofl``."""
    text = "\n".join(BLOCK.findall(page)).replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("protofl ")]


def shown(page: str) -> list[str]:
    """Return the names of the files in ``images/gallery`` that the page shows or links to."""
    return list(dict.fromkeys(SHOWN.findall(page)))


def written(typed: Iterable[Sequence[str]]) -> list[str]:
    """Return the names after ``--out`` of commands."""
    return [words[words.index("--out") + 1] for words in typed if "--out" in words]


def make(folder: Path, out: Path, rounds: int | None = None) -> list[Path]:
    """Type the commands of the page and copy the files that the page shows.

    Args:
        folder: An empty folder, in which the commands run.
        out: The folder for the files.
        rounds: Number of rounds of every run; None for the number on the page.

    Returns:
        The copied files.

    Raises:
        RuntimeError: A command failed.
    """
    page, before = PAGE.read_text(encoding="utf-8"), Path.cwd()
    os.chdir(folder)
    try:
        for code in DATA.findall(page):
            exec(code, {})
        type_all(commands(page), rounds)
    finally:
        os.chdir(before)
    out.mkdir(parents=True, exist_ok=True)
    found = [folder / name for name in shown(page) if (folder / name).is_file()]
    for path in found:
        if (
            path.suffix == ".png"
        ):  # 256 colours show a chart as well, in less than half of the bytes
            Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)
    return [Path(shutil.copy(path, out / path.name)) for path in found]


def type_all(typed: Iterable[list[str]], rounds: int | None) -> None:
    """Run commands in this process, see `make`."""
    for words in typed:
        if FROM_RECORDS in words:
            continue
        if rounds is not None and "--rounds" in words:
            words[words.index("--rounds") + 1] = str(rounds)
        print("protofl", shlex.join(words), flush=True)
        done = CliRunner().invoke(app, words)
        if done.exit_code:
            raise RuntimeError(f"protofl {shlex.join(words)}\n{done.output}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, help="rounds of every run")
    parser.add_argument("--out", type=Path, default=DOCS / FOLDER, help="folder for the files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for path in make(Path(temporary), given.out.resolve(), given.rounds):
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
