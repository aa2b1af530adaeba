"""Check the content and size of a build of protofl: ``package_contents.py WHEEL SDIST``."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

PACKAGES = {
    "protofl", "protofl_cli", "protofl_flower", "protofl_plugins", "protofl_privacy", "protofl_ray",
    "protofl_workbench",
}  # fmt: skip
GENERATOR = "protofl_plugins/generators/weights/tiny-style-cifar10.safetensors"
"""The weights of FedKTL's generator. They are stored in half precision and hardly compress."""
LARGEST = 3_000_000
"""Maximum size of each file in bytes, without the compressed weights."""


def main(wheel: Path, sdist: Path) -> None:
    """Print the sizes, or exit with what is wrong."""
    faults = []
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: info for info in archive.infolist()}
        metadata = next(name for name in files if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode("utf-8")
    if not any(name.endswith(".dist-info/sboms/sbom.cdx.json") for name in files):
        faults.append("the wheel has no sboms/sbom.cdx.json")
    tops = {name.partition("/")[0] for name in files if ".dist-info/" not in name}
    if tops != PACKAGES:
        faults.append(f"packages of the wheel: {sorted(tops)}, expected {sorted(PACKAGES)}")
    faults += [f"{p}/py.typed is missing" for p in PACKAGES if f"{p}/py.typed" not in files]
    header, _, readme = text.partition("\n\n")
    if "](docs/" in readme or 'src="docs/' in readme:
        faults.append("the README has links that work in the repository only")
    for field in ("Project-URL: Homepage", "License-File: LICENSE", "Classifier: Typing :: Typed"):
        if field not in header:
            faults.append(f"METADATA lacks {field}")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "PKG-INFO"}
    faults += [f"{name} is missing in {sdist.name}" for name in sorted(needed - names)]
    faults += [
        f"{sdist.name} contains {n}" for n in names if n.startswith(("tests/", "docs/images"))
    ]
    for path in (wheel, sdist):
        size = path.stat().st_size
        others = size - files[GENERATOR].compress_size
        print(f"{path.name}: {size / 1e6:.2f} MB, {others / 1e6:.2f} MB without {GENERATOR}")
        if others > LARGEST:
            faults.append(f"{path.name} is larger than {LARGEST / 1e6:g} MB")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
