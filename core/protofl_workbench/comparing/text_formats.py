"""Tables as LaTeX, CSV and JSON, and files of results."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.system.files.atomic import write_file


def tex_table(caption: str, columns: str, heads: list[str], body: list[str]) -> list[str]:
    """Return the lines of a LaTeX table with booktabs rules."""
    return [
        r"\begin{table}", r"\centering", rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *heads, r"\midrule", *body,
        r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ]  # fmt: skip


_TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "±": r"$\pm$", "−": "$-$", "†": r"$\dagger$", "‡": r"$\ddagger$", "–": "--", "<": "$<$",
    ">": "$>$", "×": r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$", "·": r"$\cdot$",
    "…": r"\dots{}", "’": "'", **{"₁₂₃"[n - 1]: f"$_{n}$" for n in (1, 2, 3)},
    **dict(zip("αβγδημθλρστΣ", [rf"$\{name}$" for name in (
        "alpha", "beta", "gamma", "delta", "eta", "mu", "theta", "lambda", "rho", "sigma", "tau",
        "Sigma")], strict=True)), "ε": r"$\varepsilon$",
}  # fmt: skip


def tex(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    return "".join(_TEX.get(sign, sign) for sign in text)


def csv_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return mappings with the same keys as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def json_text(values: Mapping[str, Any]) -> str:
    """Return values as JSON."""
    return json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_output(path: str | Path, content: str | bytes) -> None:
    """Write a file as a whole; an existing file is replaced.

    Raises:
        UsageError: The file cannot be written, or is not a regular file.
    """
    path = Path(path).expanduser()
    try:
        write_file(path, content)
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror or error}"
        raise UsageError(what, do="choose another file") from None
