"""Commands that write files keep what is there already, unless --force says otherwise."""

from __future__ import annotations

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
