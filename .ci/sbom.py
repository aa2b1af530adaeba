"""Write sbom.cdx.json, the list of components that a wheel of protofl contains and requires.

    python .ci/sbom.py

The file is CycloneDX 1.7 and lies in the wheel at `*.dist-info/sboms` (PEP 770). The wheel contains
no software of others, so each dependency is external, with the versions that pyproject.toml allows.
An installation has the versions that pip chose; `pip inspect` lists them.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = "sbom.cdx.json"


def dependency(requirement: str) -> dict[str, object]:
    """Return the component of a requirement such as ``torch>=2.6,<3``."""
    found = re.fullmatch(r"([\w.-]+)((?:(?:>=|<=|!=|<|>)[\w.]+,?)+)", requirement)
    if not found:
        sys.exit(f"{requirement!r} in pyproject.toml: expected NAME>=VERSION, without a marker")
    name, bounds = found[1], found[2].replace(",", "|")
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}",
        "name": name,
        "isExternal": True,
        "versionRange": f"vers:pypi/{bounds}",
        "purl": f"pkg:pypi/{name}",
    }


def sbom(root: Path = ROOT) -> str:
    """Return the text of the file."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (root / "core/protofl/system/version.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert version is not None
    purl = f"pkg:pypi/{project['name']}@{version[1]}"
    components = [dependency(each) for each in sorted(project["dependencies"])]
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": purl,
                "name": project["name"],
                "version": version[1],
                "purl": purl,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": purl, "dependsOn": [each["bom-ref"] for each in components]}],
    }
    return json.dumps(content, indent=2) + "\n"


if __name__ == "__main__":
    (ROOT / FILE).write_text(sbom(), encoding="utf-8")
