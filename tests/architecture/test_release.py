"""Tests of what a release needs: version, addresses, types, templates of issues, workflows."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from protofl import __version__
from protofl_cli.app import app

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
NAMED = (
    "core/protofl/system/version.py",
    "CITATION.cff",
    "CHANGELOG.md",
    "pyproject.toml",
    "plugins/protofl_ray/pyproject.toml",
    "SECURITY.md",
)


@pytest.fixture(scope="module")
def release_check():
    spec = importlib.util.spec_from_file_location("release_check", ROOT / ".ci/release_check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path):
    """Return a folder with the files that name version and addresses, and a released changelog."""
    for name in NAMED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    date = re.search(r'date-released: "(.*)"', (ROOT / "CITATION.cff").read_text("utf-8"))[1]
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## {__version__} - {date}\n\n### Added\n\n- All.\n\n## 0.1.0\n\n### Old\n"
    )
    return tmp_path


def change(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_version_and_addresses_agree(release_check):
    assert release_check.faults() == []
    assert CliRunner().invoke(app, ["--version"]).stdout == f"protofl {__version__}\n"


def test_a_release_that_agrees(release_check, copy):
    assert release_check.faults(copy, f"v{__version__}") == []


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("CITATION.cff", f"version: {__version__}", "version: 9", "CITATION.cff has version 9"),
        ("CITATION.cff", 'date-released: "', 'date-released: "1', "CHANGELOG.md dates"),
        ("CHANGELOG.md", f"## {__version__}", "## 0.9.0", "CHANGELOG.md begins with 0.9.0"),
        ("CHANGELOG.md", f"## {__version__} - ", "## Unreleased ", 'begins with "Unreleased'),
        ("CHANGELOG.md", "### Added", "### Methods", "'Methods' is not one of ['Added', 'Ch"),
        ("core/protofl/system/version.py", __version__, "9.9.9", "the tag is"),
        (
            "plugins/protofl_ray/pyproject.toml", f'version = "{__version__}"', 'version = "9"',
            "plugins/protofl_ray/pyproject.toml has version 9",
        ),
        ("core/protofl/system/version.py", "__version__", "version", "expected a line"),
        (
            "SECURITY.md", "github.com/protofl/protofl/security/advisories/new)",
            "github.com/other/protofl)", "SECURITY.md: https://github.com/other/protofl is not",
        ),
    ],
)  # fmt: skip
def test_what_disagrees_is_named(release_check, copy, name, old, new, said):
    change(copy / name, old, new)
    assert said in "\n".join(release_check.faults(copy, f"v{__version__}"))


def test_every_package_is_typed_and_in_the_wheel():
    """hatchling packages every file of these folders that git does not ignore."""
    target = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    packages = [name for name in target["only-include"] if not name.startswith("docs/")]
    assert {*packages} == {
        str(path.parent.relative_to(ROOT).as_posix())
        for top in ("core", "plugins", "cli")
        for path in (ROOT / top).glob("*/__init__.py")
    }
    assert [name for name in packages if not (ROOT / name / "py.typed").is_file()] == []
    assert len([*(ROOT / "cli/protofl_cli/templates").glob("*.tmpl")]) >= 13


def test_supported_versions_of_python_are_named_and_tested():
    classifiers = PROJECT["project"]["classifiers"]
    named = [c.rpartition(" ")[2] for c in classifiers if re.search(r":: 3\.\d+$", c)]
    assert tuple(named) == PYTHONS
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    workflow = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    matrix = re.search(r"python: \[(.*)\]", workflow)[1]
    assert tuple(re.findall(r"3\.\d+", matrix)) == PYTHONS
    page = (ROOT / "docs/how-to/install.md").read_text(encoding="utf-8")
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}" in page


def test_links_of_the_readme_work_on_pypi():
    """PyPI has no files beside the README, so the wheel's README has addresses of this version."""
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for each in hook["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    links = re.findall(r'\]\(([^)]+)\)|src="([^"]+)"', text)
    assert len(links) > 15
    assert [link for link in map("".join, links) if not link.startswith(("https://", "#"))] == []
    assert "https://raw.githubusercontent.com/protofl/protofl/v$HFPR_VERSION/docs/images/" in text


@pytest.mark.parametrize("name", ["bug", "wrong-result", "proposal"])
def test_issues_ask_for_the_machine(name):
    text = (ROOT / f".github/ISSUE_TEMPLATE/{name}.yml").read_text(encoding="utf-8")
    assert "label: Output of `protofl show machine`" in text


def test_every_extra_is_on_the_page():
    page = (ROOT / "docs/how-to/install.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)} == {
        *PROJECT["project"]["optional-dependencies"]
    }


def test_workflows_name_every_extra_that_resolves():
    """`browser` needs a browser; all others are installed together, three from plugins."""
    workflow = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    named = re.search(r"'\.\[(dev,docs,.*)\]'", workflow)[1].split(",")
    satellites = {*re.findall(r"-e \./plugins/protofl_(\w+)", workflow)}
    assert {*named} | satellites == {*PROJECT["project"]["optional-dependencies"]} - {"browser"}


def test_the_image_has_no_file_of_a_user():
    """A wheel for the image is below dist, and nothing else that git ignores is copied."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ignored[0] == "*"
    assert {"!core", "!plugins", "!cli", "!pyproject.toml", "!README.md", "!dist"} <= {*ignored}


@pytest.mark.slow
def test_a_built_package(tmp_path):
    """The files of all distributions have what `.ci/package` checks, built without a network."""
    build = (
        "import hatchling.build as b, sys; b.build_wheel(sys.argv[1]); b.build_sdist(sys.argv[1])"
    )
    clone, dist = tmp_path / "clone", tmp_path / "dist"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(
        ".git", ".venv", "tests", "runs", "data", "site", "dist", "lowest", ".site", "__pycache__"
    ))  # fmt: skip
    for place in (clone, *(path.parent for path in clone.glob("plugins/*/pyproject.toml"))):
        subprocess.run([sys.executable, "-c", build, dist], cwd=place, check=True)
    command = [sys.executable, ROOT / ".ci/package_contents.py", dist]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" MB without ") == 8
