"""Tests of ``protofl partition show``."""

from __future__ import annotations

import json

import numpy as np
import pytest


def test_partition_show(cli, data_dir, tmp_path, digits):
    out = tmp_path / "split.png"
    words = ("--dataset", "digits", "--clients", 3, "--seed", 4)
    result = cli("partition", "show", *words, "--out", out, "--data-dir", data_dir)
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "1,797" in result.output and "".join(str(out).split()) in "".join(result.output.split())

    # A run with the same options has the same split.
    result_of_run = cli("run", "local", *digits, "--seed", 4, "--out", "run")
    assert result_of_run.exit_code == 0, result_of_run.output
    recorded = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert recorded["hash"] in result.output


def test_partition_show_names_its_picture(cli, data_dir, tmp_path):
    words = ("--partition", "pathological", "--set", "partition.classes_per_client=3")
    result = cli("partition", "show", "--clients", 5, *words, "--data-dir", data_dir)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "partition-digits-pathological-5-s0.png").exists()
    assert "3 … 3 of 10" in result.output


IN_TURN = """
import protofl as pf, torch


class InTurn:
    'Deals rows in turn.'

    @pf.hookimpl
    def partition(self, labels, num_clients, generator, config):
        return [torch.arange(i, len(labels), num_clients) for i in range(num_clients)]
"""


def test_partition_show_takes_a_class_of_a_file(cli, data_dir, tmp_path):
    (tmp_path / "deal.py").write_text(IN_TURN)
    words = ("--partition", "deal.py:InTurn", "--clients", 3, "--data-dir", data_dir)
    result = cli("partition", "show", *words)
    assert result.exit_code == 0, result.output
    assert (
        "599 … 599" in result.output and (tmp_path / "partition-digits-in-turn-3-s0.png").exists()
    )


@pytest.mark.slow
def test_partition_show_of_many_classes(cli, tmp_path):
    y = np.arange(2400) % 60
    x = np.zeros((len(y), 8, 8), np.uint8)
    np.savez(tmp_path / "many.npz", x_train=x, y_train=y)
    words = ("--dataset", "npz:many.npz", "--clients", 70, "--partition", "iid", "--out", "p.png")
    result = cli("partition", "show", *words, "--data-dir", tmp_path / "cache")
    assert result.exit_code == 0, result.output
    assert "largest classes" in result.output and "more" in result.output
    assert max(map(len, result.output.splitlines()[1:])) <= 100  # the first line names the cache


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--partition", "dirichlett"], "did you mean 'dirichlet'"),
        (["--set", "beta=1"], "--set partition.KEY=VALUE"),
        (["--partition", "dirichlet", "--set", "partition.betta=1"], "did you mean 'beta'"),
        (["--set", "partition.beta=1"], "known: classes_per_client"),
        (["--clients", "2000"], "2000 clients"),
        (["--out", "picture.jpg"], ".png"),
        (["--out", "nowhere/picture.png"], "cannot be written"),
        (["--public", "5000"], "public samples"),
    ],
)
def test_partition_show_refuses(cli, data_dir, words, message):
    result = cli("partition", "show", *words, "--data-dir", data_dir)
    assert result.exit_code == 2
    assert message in result.stderr and "Traceback" not in result.output
