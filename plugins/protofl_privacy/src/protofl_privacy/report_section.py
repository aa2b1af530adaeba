"""The section "What the uploads reveal" of `protofl report`, from ``leak/leak.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import protofl as pf
from protofl_privacy.intervals import Number
from protofl_privacy.leak import FILE, FOLDER, PICTURE

WARNING = (
    "An attack that finds nothing proves nothing: a stronger attack may find more. Intervals are "
    "95 %: Wilson for rates and for areas over samples, bootstrap over clients or rows for the "
    "rest."
)


def section(run: pf.Run) -> dict[str, Any] | None:
    """Return the section, or None if `protofl leak` has not been run on the run."""
    file = Path(run.folder) / FOLDER / FILE
    if not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    about = (
        f"The uploads of round {found['round'] + 1} of {found['clients']} clients were attacked "
        "(protofl leak)."
    )
    parts: list[Any] = [about, *found["summary"], WARNING, *found["notes"], *tables(found)]
    picture = file.parent / PICTURE
    if picture.is_file():
        parts.append(
            {
                "title": "Reconstructed samples",
                "png": picture.read_bytes(),
                "alternative": "Decoded uploads beside the nearest training sample and class mean",
                "caption": "Best, median and worst row by PSNR, of the insider. A leak is what is "
                "closer to the nearest sample than the class mean is.",
            }
        )
    return {"title": "What the uploads reveal", "parts": parts}


def tables(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tables of a result, as `leak.Leak.to_values` gives it."""
    keys = ["key", "labels", "membership", "reconstruction"]
    result = [
        {
            "caption": "Each key of the wire: the strongest attack that read it",
            "columns": keys,
            "rows": [[row[name] for name in keys] for row in found["keys"]],
        }
    ]
    if found["labels"]:
        result.append(
            {
                "caption": "Labels: area of class presence, and total variation of class shares",
                "columns": [
                    "key",
                    "read from",
                    "presence AUC",
                    "shares off by",
                    "a guess is off by",
                ],
                "rows": [
                    [
                        row["key"],
                        row["how"] + (" (exact)" if row["exact"] else ""),
                        *(_text(row[name]) for name in ("presence", "distance", "guess")),
                    ]
                    for row in found["labels"]
                ],
            }
        )
    if found["membership"]:
        rates = list(found["membership"][0]["tpr"])
        result.append(
            {
                "caption": "Membership: area, true-positive rates at false-positive rates, and the "
                "area on samples of other clients",
                "columns": [
                    *("key", "attacker", "rule", "AUC"),
                    *(f"TPR at {float(rate):.1%} FPR" for rate in rates),
                    "others' AUC",
                ],
                "rows": [
                    [
                        *(row[name] for name in ("key", "attacker", "rule")),
                        _text(row["auc"]),
                        *(_text(row["tpr"][rate]) for rate in rates),
                        _text(row["others"]),
                    ]
                    for row in found["membership"]
                ],
            }
        )
        sizes = [
            [row["key"], row["attacker"], row["rule"], size, _text(number)]
            for row in found["membership"]
            for size, number in row["by_size"].items()
        ]
        result.append(
            {
                "caption": "Membership by the number of samples of the client's class",
                "columns": ["key", "attacker", "rule", "samples", "AUC"],
                "rows": sizes,
            }
        )
    if found["reconstruction"]:
        result.append(
            {
                "caption": "Reconstruction: PSNR in dB and SSIM to the most similar sample, "
                "compared with the class mean",
                "columns": [
                    *("attacker", "samples behind", "rows", "PSNR", "class mean", "gain"),
                    *("SSIM", "class mean's"),
                ],
                "rows": [
                    [
                        *(str(row[name]) for name in ("attacker", "behind", "rows")),
                        *(_text(row[name], 1) for name in ("psnr", "baseline", "gain")),
                        *(_text(row[name]) for name in ("ssim", "baseline_ssim")),
                    ]
                    for row in found["reconstruction"]
                ],
            }
        )
    if reasons := _reasons(found):
        result.append(
            {
                "caption": "Not measured, and why",
                "columns": ["number", "reason"],
                "rows": [[name, why] for name, why in reasons],
            }
        )
    return result


def _text(values: Mapping[str, Any], digits: int = 3) -> str:
    number = Number(**values)
    return "–" if number.value is None else number.text(digits)


NAMES = {"tpr": "true-positive rate", "others": "others' AUC", "psnr": "PSNR"}
NAMES |= {"ssim": "SSIM", "baseline_ssim": "SSIM of the class mean", "auc": "AUC"}
NAMES |= {"presence": "presence AUC", "by_size": "AUC by samples of the class"}


def _reasons(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return each kind of number that was not measured, with the reason."""
    result: dict[tuple[str, str], None] = {}
    for part in ("labels", "membership", "reconstruction"):
        for row in found[part]:
            for name, value in row.items():
                each = value.values() if name in ("tpr", "by_size") else [value]
                for number in each:
                    if isinstance(number, Mapping) and number.get("value", 0) is None:
                        text = f"{part}: {NAMES.get(name, name)}"
                        result[text, number.get("why", "")] = None
    return [*result]
