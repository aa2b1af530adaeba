"""Tests of the digests of a published folder."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

import protofl as pf
from protofl_workbench.publishing import layout


@pytest.fixture
def folder(tmp_path):
    """Return a small folder with digests, which is moved after they are written."""
    made = tmp_path / "made"
    (made / "runs/a").mkdir(parents=True)
    (made / layout.PUBLICATION).write_text('{"format": 1, "runs": []}')
    (made / "runs/a/metrics.jsonl").write_text("{}\n")
    (made / "with space.txt").write_text("x")
    layout.write_digests(made)
    return shutil.move(made, tmp_path / "moved elsewhere")


def test_a_moved_folder_is_whole(folder):
    found = layout.check_digests(folder)
    assert found.whole and found.files == 3
    assert found.digest == layout.sha256(folder / layout.DIGESTS)
    found.require(folder)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda f: (f / "runs/a/metrics.jsonl").write_text("{ \n"),
            "changed: runs/a/metrics.jsonl",
        ),
        (lambda f: (f / "with space.txt").unlink(), "missing: with space.txt"),
        (lambda f: (f / "runs/b.txt").write_text(""), "not published: runs/b.txt"),
        (lambda f: (f / ".hidden").write_text(""), "not published: .hidden"),
        (lambda f: (f / "link").symlink_to("/etc"), "not published: link"),
        (lambda f: (f / layout.DIGESTS).write_text("x"), "line 1 is not the digest of a file"),
        (
            lambda f: (f / layout.DIGESTS).write_text(f"{'0' * 64}  ../x\n"),
            "line 1 is not the digest of a file",
        ),
    ],
)
def test_every_change_is_named(folder, spoil, says):
    spoil(folder)
    with pytest.raises(layout.Changed, match=re.escape(says)) as found:
        layout.check_digests(folder).require(folder)
    assert found.value.exit_code == 1


def test_one_flipped_bit_is_found(folder):
    path = folder / "with space.txt"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]))
    assert layout.check_digests(folder).changed == ("with space.txt",)


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not installed")
def test_sha256sum_reads_the_digests(folder):
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", layout.DIGESTS], cwd=folder, capture_output=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "damaged"),
        ('{"format": 1, "runs": []}', "damaged"),
        ('{"format": 2, "runs": []}', "format 2"),
        (None, "it has no publication.json"),
    ],
)
def test_other_folders_are_refused(folder, content, says):
    path = folder / layout.PUBLICATION
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(pf.UsageError, match=says):
        layout.read_publication(folder)
