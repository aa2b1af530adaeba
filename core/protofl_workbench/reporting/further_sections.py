"""Sections that other packages add to the page of a run.

A package names a function in the entry-point group ``protofl.report_sections``. The function gets
the run (`protofl.Run`) and returns None, or a section as plain values::

    {"title": "Privacy", "parts": [
        "A paragraph.",
        {"caption": "A table", "columns": ["", "AUC"], "rows": [["counts", "0.9"]], "numbers": [1]},
        {"title": "A picture", "png": b"…", "alternative": "What it shows", "caption": ""},
    ]}
"""

from __future__ import annotations

import base64
import importlib.metadata
from collections.abc import Iterable, Mapping
from typing import Any

from protofl.errors import ends_hook, error_text
from protofl_workbench.recorded.recorded_run import Run
from protofl_workbench.reporting.page_parts import PageTable, Part, Picture, Section

GROUP = "protofl.report_sections"
"""The entry-point group of functions that return a section."""


def further_sections(run: Run) -> list[Section]:
    """Return the sections of other packages, in the order of their names.

    A function that fails gives a section with its error, and the page is written all the same.
    """
    sections = []
    for point in sorted(_points(), key=lambda point: point.name):
        try:
            values = point.load()(run)
            if values:
                parts = [_part(part) for part in values["parts"]]
                sections.append(Section(str(values["title"]), parts))
        except BaseException as error:
            if not ends_hook(error):
                raise
            reason = f"The section of {point.value} is missing: {error_text(error)}."
            sections.append(Section(point.name, [reason]))
    return sections


def _points() -> Iterable[importlib.metadata.EntryPoint]:
    return importlib.metadata.entry_points(group=GROUP)


def _part(values: str | Mapping[str, Any]) -> Part:
    if isinstance(values, str):
        return values
    if "png" in values:
        drawing = f"data:image/png;base64,{base64.b64encode(values['png']).decode()}"
        texts = values["title"], drawing, values["alternative"]
        return Picture(*texts, values.get("caption", ""), on_paper=True)
    numbers = frozenset(values.get("numbers", ()))
    return PageTable(values["caption"], values["columns"], values["rows"], numbers)
