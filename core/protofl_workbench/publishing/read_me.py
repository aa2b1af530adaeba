"""``README.md`` of a published folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from protofl.system.formatting import visible

TEXT = """\
# {title}

{description}

Published on {published}{authors}. License: {license}.

## Runs

| run | method | models | data | trials × rounds | seed | final test accuracy |
|---|---|---|---|--:|--:|--:|
{rows}

`index.html` shows the runs in a browser, `publication.json` describes the folder for programs, and
`papers.bib` has the papers to cite.

## Verify

`SHA256SUMS` has the digest of every file: `sha256sum --check SHA256SUMS`. protofl also compares
summaries and page with the rows of the runs, and repeats a run that it draws at random:

```bash
pip install {requirement}
protofl verify .
```

The runs were made with protofl {protofl}, torch {torch} and Python {python} (`requirements.txt`).
With the same version of torch on the same type of processor, a repeated run has the same figures to
the last bit. Data are not part of this folder: `--dataset NAME=FORM:PATH` gives the place of data
that are files. `--trust-code` allows the code of a plugin in this folder: read it first.

To repeat a run by hand, in this folder:

```bash
{commands}
```

## Left out

{left_out}

Paths were replaced by the names of their files, and in sentences the names of the user and the
machine by `USER` and `HOST`. Figures were not changed.
"""


def read_me(values: Mapping[str, Any]) -> str:
    """Return ``README.md``: the runs, how to verify and repeat them, and what is left out.

    Args:
        values: The content of ``publication.json``.
    """
    rows = [
        f"| `{run['name']}` | {plain(run['method'])} | {plain(run['models'])} | "
        f"{plain(run['dataset'])} | {run['trials']} × {run['rounds']} | {run['seed']} | "
        f"{_percent(run.get('final_test_accuracy'))} |"
        for run in values["runs"]
    ]
    people = ", ".join(map(plain, values["authors"]))
    versions = values["versions"]
    return TEXT.format(
        title=plain(values["title"]),
        description=plain(values["description"]),
        published=values["published"],
        authors=f" by {people}" if people else "",
        license=plain(values["license"]) or "none, so ask the authors before reuse",
        rows="\n".join(rows),
        requirement=shlex.quote("protofl==" + _word(versions["protofl"])),
        **{name: plain(versions[name]) for name in ("protofl", "torch", "python")},
        commands="\n".join(_word(run["command"]) for run in values["runs"]),
        left_out="\n".join(f"- {line}" for line in values["left_out"]),
    )


def plain(text: str) -> str:
    """Return a text of others for Markdown: no markup, no HTML, no links, no control characters."""
    line = " ".join(visible(text).split())
    return re.sub(
        r"[^\w ,.:%×-]|_|\.(?=[^\W\d])|:(?=\S)|^-", lambda sign: f"&#{ord(sign[0])};", line
    )


def _word(text: str) -> str:
    """Return a word of others for a command: one line without control characters and backquotes."""
    return " ".join(visible(text).replace("`", "'").split())


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"
