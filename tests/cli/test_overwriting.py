"""Commands replace only regular files, with --force, and read only regular files."""

from __future__ import annotations

import contextlib
import os

import pytest

COMMANDS = {
    "partition show": ["partition", "show", "--clients", "2", "--out"],
    "generator train": ["generator", "train", "digits", "--out"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_what_is_there_is_kept(cli, tmp_path, words):
    file = tmp_path / "precious.png"
    file.write_text("precious")
    found = cli(*words, file)
    assert found.exit_code == 2, found.output
    assert "exists already" in found.stderr and "--force" in found.stderr
    assert file.read_text() == "precious"


def test_with_force_it_is_replaced(cli, data_dir, tmp_path, few):
    file = tmp_path / "picture.png"
    words = ["partition", "show", "--clients", 2, "--dataset", few, "--data-dir", data_dir]
    assert cli(*words, "--out", file).exit_code == 0
    first = file.read_bytes()
    assert cli(*words, "--out", file, "--seed", 1).exit_code == 2
    assert cli(*words, "--out", file, "--seed", 1, "--force").exit_code == 0
    assert file.read_bytes() != first


def test_a_name_by_default_is_no_exception(cli, data_dir, few):
    words = ["partition", "show", "--clients", 2, "--dataset", few, "--data-dir", data_dir]
    assert cli(*words).exit_code == 0
    again = cli(*words)
    assert again.exit_code == 2 and "exists already" in again.stderr
    assert cli(*words, "--force").exit_code == 0


TARGETS = {
    "report": "report r --out {0}",
    "compare": "compare r r --out {0} --format md",
    "plot": "plot curve r --out {0}",
    "partition show": "partition show --out {0}",
    "reproduce": "reproduce fedtgp/table-10 --no-run --out {0} --format md",
    "export": "export r {0}",
    "generator train": "generator train digits --out {0}",
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("words", TARGETS.values(), ids=TARGETS)
def test_no_command_replaces_a_pipe(cli, tmp_path, words):
    pipe = tmp_path / ("pipe.png" if words.startswith(("plot", "partition")) else "pipe.html")
    os.mkfifo(pipe)
    found = cli(*(word.format(pipe) for word in words.split()), "--force")
    assert found.exit_code == 2, found.output
    assert "neither new nor a regular file" in " ".join(found.stderr.split())
    assert pipe.is_fifo()


@contextlib.contextmanager
def small_disk():
    """Limit files to 600 bytes, as on a full disk; inside the block only, as pytest writes too."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_part_of_a_plugin_is_left_on_a_full_disk(cli, tmp_path):
    with small_disk():
        found = cli("new-plugin", "my-method", "--out", tmp_path / "new")
    assert found.exit_code == 2 and "cannot be written" in found.stderr
    assert not [*(tmp_path / "new").iterdir()]


SOURCES = {
    "config": "run local --config null.toml",
    "device-model": "run local --devices trace:/dev/null",
    "client-sampler": "run local --sampling list:/dev/null",
    "dataset": "run local --dataset npz:/dev/null",
    "reproduction": "reproduce null.toml",
    "generator": "run fedktl --generator tiny-style --set generator.weights=/dev/null",
}


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="this system has no device files")
@pytest.mark.parametrize("words", SOURCES.values(), ids=SOURCES)
def test_no_command_reads_a_device(cli, tmp_path, few, words):
    (tmp_path / "null.toml").symlink_to("/dev/null")
    small = ["--models", "cnn4", "--clients", 2, "--rounds", 1, "--backend", "local"]
    small += [] if "npz" in words else ["--dataset", few]
    found = cli(*words.split(), *([] if words.startswith("reproduce") else small))
    assert found.exit_code == 2, found.output
    assert "not a regular file" in " ".join(found.stderr.split())
