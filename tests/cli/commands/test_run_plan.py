"""Tests of ``protofl run --plan``."""

from __future__ import annotations

import re

import pytest

import protofl as pf

RUN = "fedproto --dataset wine --models mlp --clients 3 --rounds 3".split()


@pytest.fixture
def planned(cli, data_dir, tmp_path):
    result = cli("run", *RUN, "--plan", "--data-dir", data_dir)
    assert result.exit_code == 0, result.output
    return re.sub(r"\s+", " ", result.output)


@pytest.mark.slow
def test_the_traffic_is_that_of_the_run(planned, data_dir, tmp_path):
    given = {"models": "mlp", "dataset": "wine", "clients": 3, "rounds": 3, "progress": False}
    pf.run("fedproto", backend="local", data_dir=data_dir, out=tmp_path / "run", **given)
    rows = pf.load_run(tmp_path / "run").rows
    up, down = ([getattr(row, f"{way}_bytes") for row in rows] for way in ("upload", "download"))
    assert up[0] == up[1] == up[2] and down[0] == 0 and down[1] == down[2]
    assert f"upload a round {up[0] / 1000:.3g} kB download" in planned
    assert f"download a round {down[1] / 1000:.3g} kB; in the first nothing" in planned
    assert f"traffic in all {(sum(up) + sum(down)) / 1000:.3g} kB" in planned


@pytest.mark.slow
def test_the_page_has_hooks_split_and_costs(planned, tmp_path):
    for words in ("upload_payload fedproto", "server_train fedproto (default)", "split", "hash"):
        assert words in planned
    assert re.search(r"architecture clients parameters forward FLOPs", planned)
    assert re.search(r"mini-batches \d[\d,]* in 3 rounds", planned)
    assert re.search(r"majority guess \d\d\.\d% accuracy", planned)
    assert re.search(r"time about \d+:\d\d with \d+ process", planned)
    assert "run folder" not in planned and not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_without_rounds_the_costs_of_steps_are_said_to_be_the_most(cli, data_dir):
    without = ["--devices", "tiers", "--schedule", "buffered"]
    result = cli("run", *RUN, *without, "--plan", "--data-dir", data_dir)
    assert "upload a step" in result.output and "mini-batches" in result.output
    assert " in 3 steps" in result.output and "upper bounds" in result.output
    assert "a round" not in result.output.partition("architecture ")[2]


def test_a_run_that_would_fail_fails(cli, data_dir):
    result = cli("run", *RUN, "--use", "upload_payload=local", "--plan", "--data-dir", data_dir)
    assert result.exit_code == 2 and "prototypes" in result.output


@pytest.mark.parametrize(
    ("words", "flag"),
    [(["--resume", "--out", "x"], "--resume"), (["--reuse", "runs"], "--reuse")],
)
def test_what_starts_a_run_is_refused_beside_it(cli, words, flag):
    result = cli("run", "fedproto", "--plan", *words)
    assert result.exit_code == 2 and f"{flag} has no effect" in result.output
