"""Tests of deployed runs without rounds, with Flower's own programs on this machine.

Three nodes have a client each. In one test a node is killed for good while its client trains, and
one hangs for most of the run. In the other one the run itself is killed and resumed. Each takes
about two minutes on an idle machine.
"""

from __future__ import annotations

import json
import signal
import sys
from importlib.util import find_spec
from itertools import pairwise

import pytest
from deployed_lab import Lab, kill, online
from repeated_schedule import assert_repeatable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.skipif(find_spec("flwr") is None, reason="Flower is not installed"),
]

STEPS = 12
HOST = "protofl_flower.node.host"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab"), nodes=3, clients=3)
    try:
        online(lab)
        yield lab
    finally:
        kill(HOST, lab.nodes[1], signal.SIGCONT)
        lab.close()


def test_a_slow_node_and_a_dead_one_delay_nobody(lab):
    words = [
        "--clients",
        3,
        "--rounds",
        STEPS,
        "--schedule",
        "buffered",
        "--set",
        "timing.buffer=1",
    ]
    run = lab.new_run("buffered", *words)
    run.wait_for(f"round 3/{STEPS}")  # by now all nodes have a client in training
    kill(HOST, lab.nodes[1], signal.SIGSTOP)
    lab.starts[2].end(signal.SIGKILL)
    kill("", lab.nodes[2])
    run.wait_for(f"round 9/{STEPS}")
    kill(HOST, lab.nodes[1], signal.SIGCONT)
    assert run.wait_for_end() == 0, run.said
    text = (lab.folder / "buffered" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert len(rows) == STEPS
    steps = [row["schedule"] for row in rows]
    assert all(len(step["versions"]) == 1 and step["clock"] == "real" for step in steps)
    # While one node hung and the other was gone, the third one did every step, as fast as it can.
    assert all({*step["versions"]} == {"0"} for step in steps[5:9]), steps
    seconds = [step["seconds"]["0"] for step in steps if "0" in step["seconds"]]
    waits = [later["time"] - step["time"] for step, later in pairwise(steps)]
    assert max(waits[4:8]) < max(seconds) + 5
    assert all(step["staleness"]["max"] == 0 for step in steps[6:9])
    ages = [n - version for n, step in enumerate(steps) for version in step["versions"].values()]
    assert ages == [step["staleness"]["max"] for step in steps]
    # The record names the reasons, and no score is of a client that is gone.
    assert {*rows[-1].get("unscored", {})} <= {"1", "2"}
    (last,) = steps[-1]["versions"]  # it has nothing to do, so it is evaluated once more
    assert steps[-1]["evaluated"][last] == STEPS
    assert not any("2" in step["versions"] for step in steps[5:])


def test_a_run_that_was_killed_goes_on_and_loses_no_accepted_upload(lab, tmp_path):
    """The process of the run and a node are killed; a simulation of the record has its states."""
    if lab.starts[2].process.poll() is not None:
        lab.starts[2] = lab.start_node(2)
        online(lab)
    words = ["--clients", 3, "--rounds", 8, "--schedule", "buffered", "--set", "timing.buffer=1"]
    run = lab.new_run("killed", *words)
    run.wait_for("round 3/8")
    assert kill("protofl_flower.run_process", lab.lab)
    assert run.wait_for_end() != 0, run.said
    lab.starts[0].end()
    lab.starts[0] = lab.start_node(0)
    online(lab)
    run = lab.run("killed", "--resume")
    assert run.wait_for_end() == 0, run.said
    given = {"method": "fedproto", "models": "htcnn8", "dataset": "digits", "clients": 3}
    given |= {"batch_size": 64, "local_epochs": 10, "device": "cpu", "feature_dim": 16}
    given |= {"dry_run": False, "data_dir": lab.folder / "data", "rounds": 8}
    given |= {"timing": "buffered", "options": {"timing": {"buffer": 1}}}
    given |= {"on_lost_client": "skip", "on_bad_upload": "skip"}
    assert len(assert_repeatable(lab.folder / "killed", tmp_path, **given)) == 8
