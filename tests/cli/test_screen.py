"""The screen of a run, as a thing of its own."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from protofl_cli.last_table import result_rows
from protofl_cli.screen import Screen


def test_it_leaves_no_thread_behind():
    """A thread that outlives a run frees its tensors while the interpreter ends, which aborts."""
    before = set(threading.enumerate())
    with Screen():
        assert set(threading.enumerate()) - before
    assert set(threading.enumerate()) <= before  # another test's may have ended meanwhile


def test_the_last_table_shows_the_accuracy_of_the_server_and_of_the_honest():
    trial = {
        "best_test_accuracy": 0.5,
        "best_round": 0,
        "final_test_accuracy": 0.4,
        "majority_accuracy": 0.3,
        "best_server_accuracy": 0.7,
        "best_server_round": 1,
        "final_server_accuracy": 0.6,
        "best_honest_accuracy": 0.55,
        "best_honest_round": 2,
        "final_honest_accuracy": 0.45,
    }
    mean = {key: value for key, value in trial.items() if "round" not in key}
    result = SimpleNamespace(summary={**trial, "rounds": 3, "trials": [trial], "mean": mean})
    _, rows = result_rows(result, None)
    assert rows[3:] == [
        ["best server accuracy", "70.00% after 2 of 3 rounds"],
        ["final server accuracy", "60.00%"],
        ["best accuracy of the honest", "55.00% after 3 of 3 rounds"],
        ["final accuracy of the honest", "45.00%"],
    ]
