"""Check the content and size of the builds of all distributions: ``package_contents.py DIST``."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

PACKAGES = {
    "protofl": {"protofl", "protofl_cli", "protofl_plugins", "protofl_workbench"},
    "protofl_flower": {"protofl_flower"},
    "protofl_privacy": {"protofl_privacy"},
    "protofl_ray": {"protofl_ray"},
}
"""{distribution: the packages of its wheel}."""
GENERATOR = "protofl_plugins/generators/weights/tiny-style-cifar10.safetensors"
"""The weights of FedKTL's generator. They are stored in half precision and hardly compress."""
LARGEST = 3_000_000
"""Maximum size of each file in bytes, without the compressed weights."""


def faults_of(distribution: str, dist: Path) -> list[str]:
    """Print the sizes of a distribution's two files; return what is wrong with them."""
    [wheel] = dist.glob(f"{distribution}-*.whl")
    [sdist] = dist.glob(f"{distribution}-*.tar.gz")
    packages, faults = PACKAGES[distribution], []
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: info for info in archive.infolist()}
        metadata = next(name for name in files if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode("utf-8")
    listed = any(name.endswith(".dist-info/sboms/sbom.cdx.json") for name in files)
    if distribution == "protofl" and not listed:
        faults.append("the wheel has no sboms/sbom.cdx.json")
    tops = {name.partition("/")[0] for name in files if ".dist-info/" not in name}
    if tops != packages:
        faults.append(f"packages of {wheel.name}: {sorted(tops)}, expected {sorted(packages)}")
    faults += [f"{p}/py.typed is missing" for p in packages if f"{p}/py.typed" not in files]
    header, _, readme = text.partition("\n\n")
    if "](docs/" in readme or 'src="docs/' in readme:
        faults.append(f"the README of {wheel.name} has links that work in the repository only")
    for field in ("Project-URL: Homepage", "License-File: LICENSE", "Classifier: Typing :: Typed"):
        if field not in header:
            faults.append(f"METADATA of {wheel.name} lacks {field}")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"}
    if distribution == "protofl":
        needed |= {"CHANGELOG.md", "CITATION.cff"}
        left_out = ("tests/", "docs/images", "plugins/protofl_flower")
        faults += [f"{sdist.name} contains {n}" for n in names if n.startswith(left_out)]
    faults += [f"{name} is missing in {sdist.name}" for name in sorted(needed - names)]
    for path in (wheel, sdist):
        size = path.stat().st_size
        weights = files[GENERATOR].compress_size if GENERATOR in files else 0
        others = size - weights
        print(f"{path.name}: {size / 1e6:.2f} MB, {others / 1e6:.2f} MB without {GENERATOR}")
        if others > LARGEST:
            faults.append(f"{path.name} is larger than {LARGEST / 1e6:g} MB")
    return faults


if __name__ == "__main__":
    found = [fault for each in PACKAGES for fault in faults_of(each, Path(sys.argv[1]))]
    if found:
        sys.exit("\n".join(found))
