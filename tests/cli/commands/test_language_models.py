"""A language model as a user types it: run, compare, report, export, score and evaluate."""

from __future__ import annotations

import json

import numpy as np
import pytest

import protofl as pf


def test_from_a_run_to_scores(cli, data_dir, tmp_path):
    words = (
        "--models causal --set models.width=16 --set models.heads=2 --dataset python-docs "
        "--set dataset.task=language-model --set dataset.length=12 --subset 80 --clients 2 "
        "--rounds 1 --partition iid --backend local --no-dry-run --keep last"
    ).split()
    for method in ("fedavg", "local"):
        done = cli("run", method, *words, "--data-dir", data_dir, "--out", method)
        assert done.exit_code == 0, done.output
        assert "round 1/1: perplexity " in done.output and "next tokens" in done.output
    record = pf.load_run("fedavg")
    assert record.config["data"]["task"] == "language-model"
    perplexity = record.rows[-1].metrics["perplexity"]["all"]
    lines = pf.compare(["fedavg", "local"], baseline="local").lines()
    assert len([line for line in lines if line["figure"] == "perplexity"]) == 2
    shown = cli("compare", "fedavg", "local").output
    assert f"{perplexity:.1f}" in shown and "perplexity" in shown
    assert cli("report", "fedavg", "--out", "page.html").exit_code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Final perplexity" in page and "lower is better" in page
    assert cli("export", "fedavg", "client.pt2").exit_code == 0
    (tmp_path / "new.txt").write_text("a class has methods and a function has none")
    scored = cli("score", "client.pt2", "new.txt", "--trust-pickle", "--json")
    assert scored.exit_code == 0, scored.output
    (line,) = json.loads(scored.output)["samples"]
    predicted = record.predict(0, ["a class has methods and a function has none"])
    assert float(line["perplexity"]) == pytest.approx(float(predicted[0]), rel=1e-3)
    evaluated = cli("evaluate", "fedavg", "python-docs")
    assert evaluated.exit_code == 0 and "perplexity" in evaluated.output
    data = record.plan.data
    rows = record.plan.split(0).test(0)
    np.savez("new.npz", x=data.x[rows].numpy(), y=data.y[rows].numpy())
    own = record.evaluate("new.npz", [0]).clients[0]["perplexity"]
    recorded = record.rows[-1].metrics["perplexity"]["clients"]["0"]
    assert own == pytest.approx(recorded, rel=1e-4)
