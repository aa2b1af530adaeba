"""Tests that a server replayed on a stored run's uploads is the same to the last bit."""

from __future__ import annotations

import pytest
import torch
from golden_runs import ROUNDS, RUNS, plan_of
from slowness import quick

from protofl.federation.round.observer import Observer
from protofl.testing import toy as toyfed
from protofl_workbench.replaying.replay import RecordedUploads
from protofl_workbench.replaying.replayed_server import ReplayedServer, is_same

LEARNING = sorted(RUNS.keys() - {"local"})
OFTEN = ("fedproto", "fedtgp", "fedsa", "fedkd", "fedpkd")


@pytest.mark.parametrize("name", quick(LEARNING, *OFTEN))
def test_a_replay_knows_what_the_run_knew(name, tmp_path):
    plan = plan_of(name, tmp_path, record_uploads=True)
    toy = toyfed.Toy(plan)
    toy.federation.observer = Observer(plan, tmp_path, (), lambda line: None)
    server = ReplayedServer(plan, 0)
    begun = {key: value.clone() for key, value in server.global_state.items()}
    for number in range(ROUNDS):
        lines = toy.rounds(1)
        server.round(number, RecordedUploads(tmp_path, 0).of(number, torch.device("cpu")))
        assert is_same(server.global_state, toy.server.global_state)
        assert server.extra == lines[-1]["extra"]
    assert not is_same(server.global_state, begun)
