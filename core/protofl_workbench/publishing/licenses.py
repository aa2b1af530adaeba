"""Licenses of published folders."""

from __future__ import annotations

import re

from protofl.errors import UsageError

KNOWN = {
    "CC-BY-4.0": (
        "Creative Commons Attribution 4.0",
        "https://creativecommons.org/licenses/by/4.0/",
    ),
    "CC-BY-SA-4.0": (
        "Creative Commons Attribution Share Alike 4.0",
        "https://creativecommons.org/licenses/by-sa/4.0/",
    ),
    "CC-BY-NC-4.0": (
        "Creative Commons Attribution Non Commercial 4.0",
        "https://creativecommons.org/licenses/by-nc/4.0/",
    ),
    "CC0-1.0": (
        "Creative Commons Zero 1.0",
        "https://creativecommons.org/publicdomain/zero/1.0/",
    ),
    "Apache-2.0": ("Apache License 2.0", "https://www.apache.org/licenses/LICENSE-2.0"),
    "MIT": ("MIT License", "https://opensource.org/license/mit"),
}
"""Frequent licenses by their SPDX identifiers: name and address."""


def license_of(given: str) -> dict[str, str]:
    """Return a license: ``id``, ``name``, ``description`` and ``url``.

    Args:
        given: SPDX identifier, or an address; empty for none.

    Raises:
        UsageError: It is neither.
    """
    if not given:
        text = "No license is given. Ask the authors before you use more than the law allows."
        return {"id": "", "name": "No license", "description": text, "url": ""}
    if given.startswith(("https://", "http://")):
        return {"id": "", "name": given, "description": f"See {given}", "url": given}
    same = next((name for name in KNOWN if name.lower() == given.lower()), given)
    if same not in KNOWN and not re.fullmatch(r"[A-Za-z0-9.+]+-[A-Za-z0-9.+-]+", same):
        raise UsageError(
            f"--license {given} is neither an SPDX identifier nor an address",
            f"frequent ones: {', '.join(KNOWN)}",
            "see https://spdx.org/licenses/",
        )
    name, url = KNOWN.get(same, (same, f"https://spdx.org/licenses/{same}.html"))
    return {"id": same, "name": name, "description": f"{name} ({same})", "url": url}
