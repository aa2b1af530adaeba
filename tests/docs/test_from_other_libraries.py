"""Test that the commands for those who come from PFLlib give PFLlib's numbers.

`plain_federation` has PFLlib's methods as they are described, and takes the options of PFLlib's
column of the page; `protofl run` takes those of its own column. Both compute in float64.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from functools import partial

import numpy as np
import plain_federation as plain
import pytest
import torch
from doc_pages import DOCS
from typer.testing import CliRunner

import protofl as pf
from protofl.federation.round.client_sampling import default_participants
from protofl.system.randomness import global_stream
from protofl.testing.equality import double_precision
from protofl_cli.app import app

PAGE = (DOCS / "how-to/from-other-libraries.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("<!-- commands -->")[2].lstrip().partition("\n\n")[0]
ROWS = [row.replace("`", "").strip("| ").split(" | ") for row in TABLE.splitlines()[2:]]
COMMAND = PAGE.partition("protofl run fedprox --set mu=1 ")[2].partition("```")[0]
OF_ALL = COMMAND.replace("\\\n", "").split()
HALF = [row for row in ROWS if row[0].split()[0] in ("SCAFFOLD", "FedProto", "Ditto")]

LR, ROUNDS, SIZES = 0.05, 4, (34, 25, 47, 31)
"""A larger η than the page's, with which four short rounds tell the methods apart."""


def named(theirs):
    """Return PFLlib's name of an algorithm and its options."""
    return re.sub(r" -.*", "", theirs), dict(re.findall(r" -(\w+) (\S+)", theirs))


def test_the_commands_are_found():
    assert len(ROWS) == 15 and ROWS[0] == ["Local", "local"]
    assert {named(theirs)[0] for theirs, _ in ROWS} == {*plain.METHODS}
    assert len(HALF) == 3 and {"--drop-last", "--same-init"} < {*OF_ALL}


@pytest.fixture
def split(tmp_path):
    """Return a folder of samples as PFLlib writes them: noisy images, classes in other shares."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 1, 28, 28))
    for client, size in enumerate(SIZES):
        shares = rng.dirichlet([1.0] * 10)
        for part, n in (("train", size), ("test", 60)):
            y = rng.choice(10, n, p=shares)
            x = (centres[y] + 3 * rng.normal(size=(n, 1, 28, 28))).astype("float32")
            (tmp_path / "split" / part).mkdir(parents=True, exist_ok=True)
            np.savez(tmp_path / f"split/{part}/{client}.npz", data={"x": x, "y": y})
    return tmp_path / "split"


def run_of(ours, split, data_dir, share):
    """Return the run of a command of the page."""
    words = ["run", *OF_ALL, *ours.split(), "--no-shuffle", "--participation", str(share)]
    words += ["--dataset", f"pfllib:{split}", "--rounds", str(ROUNDS), "--lr", str(LR)]
    words += ["--data-dir", str(data_dir), "--out", str(split.parent / "run"), "--no-dry-run"]
    done = CliRunner().invoke(app, [*words, "--device", "cpu", "--backend", "local"])
    assert done.exit_code == 0, done.output
    return pf.Run(split.parent / "run")


def draws(plan, total, number, who, steps, noise):
    """Yield the labels and the noise of FedGen's steps. PFLlib's are drawn otherwise."""
    stream = pf.random_stream(plan.seed(0), "fedgen", "draws", number, who)
    of_server = who == "server"
    counts = total if number or of_server else torch.ones_like(total)
    rows = [(1, plain.BATCH)] * steps if of_server else [(steps, plain.BATCH)]
    for shape in rows:
        labels = torch.multinomial(counts.double(), shape[0] * shape[1], True, generator=stream)
        eps = torch.rand(*shape, noise, generator=stream)
        yield from zip(labels.view(shape), eps, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "ours", "share"), [(*r, 1.0) for r in ROWS] + [(*r, 0.5) for r in HALF]
)
def test_a_command_gives_the_numbers_of_a_loop_from_the_description(
    theirs, ours, share, split, data_dir
):
    algorithm, options = named(theirs)
    with double_precision():
        run = run_of(ours, split, data_dir, share)
        plan, clients = run.plan, range(len(SIZES))
        parts = [(plan.split(0).train(k), plan.split(0).test(k)) for k in clients]
        data = [[plan.samples(rows, False) for rows in pair] for pair in parts]
        data = [[(samples.inputs(), samples.y) for samples in pair] for pair in data]
        total = torch.bincount(torch.cat([y for (_, y), _ in data]), minlength=10)
        w = plan.info.build(plan.info.architectures[0].name, plan.seed(0))
        nets = [deepcopy(plan.initial_model(k, 0)) for k in clients]
        with global_stream(plan.seed(0), "setup-server"):  # the first weights of FedGen's G
            loop = plain.METHODS[algorithm](w, nets, data, LR, options, partial(draws, plan, total))
        lines = [*map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())]
        for number in range(ROUNDS):
            asked = round(share * len(SIZES))
            loop.round(default_participants(plan.seed(0), number, len(SIZES), asked))
            scores = lines[number]["client_accuracies"].values()
            assert [round(60 * score) for score in scores] == loop.correct(), number
