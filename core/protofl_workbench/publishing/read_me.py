"""Texts of a published folder for people: ``README.md`` and ``CITATION.cff``."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from protofl.system.formatting import count, visible
from protofl_workbench.publishing import layout


def read_me(values: Mapping[str, Any], files: Sequence[str]) -> str:
    """Return ``README.md``: contents, how to verify and repeat the runs, and what is left out.

    Args:
        values: The content of ``publication.json``.
        files: The files of the folder so far.
    """
    people = ", ".join(plain(author["name"]) for author in values["authors"])
    about = [f"Published on {values['published']}" + (f" by {people}" if people else "") + "."]
    given = values["license"]
    about.append(
        f"License: [{plain(given['name'])}]({given['url']})."
        if given["url"]
        else plain(given["description"])
    )
    rows = [
        f"| `{run['name']}` | {plain(run['method'])} | {plain(run['models'])} | "
        f"{plain(run['dataset'])} | "
        f"{_extent(run)} | {run['seed']} | {_percent(run.get('final_test_accuracy'))} | "
        f"{run['seconds']:,.1f} |"
        for run in values["runs"]
    ]
    versions = values["versions"]
    lines = [
        f"# {plain(values['title'])}",
        "",
        plain(values["description"]),
        "",
        " ".join(about),
        "",
        "## Runs",
        "",
        "| run | method | models | data | rounds | seed | final test accuracy | seconds |",
        "|---|---|---|---|--:|--:|--:|--:|",
        *rows,
        "",
        "`index.html` shows the runs in a browser, without network.",
        "",
        "## Verify",
        "",
        f"Every file has its SHA-256 in `{layout.DIGESTS}`. Without protofl:",
        "",
        "```bash",
        f"sha256sum --check {layout.DIGESTS}",
        "```",
        "",
        "protofl also compares summaries, page and figures with the rows of the runs, and does a "
        "run again that it draws at random:",
        "",
        "```bash",
        f"pip install {shlex.quote('protofl==' + _word(versions['protofl']))}",
        "protofl verify .",
        "```",
        "",
        f"The runs were made with protofl {plain(versions['protofl'])}, torch "
        f"{plain(versions['torch'])} and Python {plain(versions['python'])} "
        f"(`{layout.ENVIRONMENT}`, `{layout.REQUIREMENTS}`). With the "
        "same version of torch on the same type of processor, a repeated run has the same figures "
        "to the last bit.",
        "",
        *_commands(values),
        "",
        "## Files",
        "",
        *_contents(files),
        "",
        "## Left out",
        "",
        *(f"- {line}" for line in values["left_out"]),
        "",
        "Paths were replaced by the names of their files, and in sentences the names of the user "
        "and the machine by `USER` and `HOST`. Figures were not changed.",
        "",
        "## Cite",
        "",
        f"`{layout.PAPERS}` has the papers of protofl, and of the methods, data sets and model "
        "groups of these runs.",
    ]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Return a text of others for Markdown: no markup, no HTML, no links, no control characters."""
    line = " ".join(visible(text).split())
    return re.sub(
        r"[^\w ,.:%×-]|_|\.(?=[^\W\d])|:(?=\S)|^-", lambda sign: f"&#{ord(sign[0])};", line
    )


def _word(text: str) -> str:
    """Return a word of others for a command: one line without control characters and backquotes."""
    return " ".join(visible(text).replace("`", "'").split())


def _extent(run: Mapping[str, Any]) -> str:
    return f"{run['trials']} × {run['rounds']}" if run["trials"] > 1 else f"{run['rounds']}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


def _commands(values: Mapping[str, Any]) -> list[str]:
    """Return how each run is repeated by hand, in this folder."""
    lines = ["To repeat a run by hand, in this folder:", "", "```bash"]
    lines += [_word(run["command"]) for run in values["runs"]]
    lines += ["```"]
    files = sorted({run["dataset"] for run in values["runs"] if ":" in run["dataset"]})
    if files:
        names = ", ".join(map(plain, files))
        first = _word(files[0])
        place = shlex.quote(f"{first}={first.partition(':')[0]}:PATH")
        lines += [
            "",
            f"The data are not part of this folder. Give the place of {names} with `--dataset`: "
            f"`protofl verify . --dataset {place}`. "
            "`publication.json` has their digests.",
        ]
    if any(run["sources"] for run in values["runs"]):
        lines += ["", "`--trust-code` allows the code of a plugin in this folder: read it first."]
    return lines


def _contents(files: Sequence[str]) -> list[str]:
    known = {
        layout.PAGE: "report of the runs",
        f"{layout.RUNS}/": "configuration (`config.json`), figures of every round "
        "(`metrics.jsonl`), best and final figures (`summary.json`) and split (`partition.json`) "
        "of each run",
        f"{layout.FIGURES}/": "figures",
        f"{layout.PLUGINS}/": "source of plugins that are not installed with a package",
        layout.PUBLICATION: "what is published, for programs: runs, plugins and their digests",
        layout.ENVIRONMENT: "software and machines of the runs",
        layout.REQUIREMENTS: "versions of Python packages",
        layout.PAPERS: "papers to cite (BibTeX)",
        layout.CITATION: "how to cite this folder",
    }
    lines = []
    for name, text in known.items():
        inside = [file for file in files if file == name or file.startswith(name)]
        number = f" ({count(len(inside), 'file')})" if name.endswith("/") else ""
        if inside:
            lines.append(f"- `{name}`: {text}{number}")
    return [*lines, f"- `{layout.DIGESTS}`: digests"]


def citation(values: Mapping[str, Any]) -> str:
    """Return ``CITATION.cff`` of a publication with authors (Citation File Format 1.2.0)."""
    lines = [
        "cff-version: 1.2.0",
        "message: If you use these results, please cite them, and the papers in papers.bib.",
        "type: dataset",
        f"title: {json.dumps(values['title'], ensure_ascii=False)}",
        f"abstract: {json.dumps(values['description'], ensure_ascii=False)}",
        f"date-released: {values['published']}",
        *([f"license: {values['license']['id']}"] if values["license"]["id"] else []),
        *(
            [f"license-url: {values['license']['url']}"]
            if values["license"]["url"] and not values["license"]["id"]
            else []
        ),
        "authors:",
    ]
    for author in values["authors"]:
        lines.append(f"  - name: {json.dumps(author['name'], ensure_ascii=False)}")
        if "orcid" in author:
            lines.append(f"    orcid: https://orcid.org/{author['orcid']}")
    return "\n".join(lines) + "\n"
