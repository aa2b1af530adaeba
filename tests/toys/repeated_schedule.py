"""Repeats a deployed run without rounds as a simulation, by what its record says."""

from __future__ import annotations

import protofl as pf
from protofl.backends import Plan
from protofl.federation.jobs.jobs import Save
from protofl.federation.round.federation import Federation
from protofl.records.checkpoint import Commit
from protofl.system.files.checksums import checks_of
from protofl_plugins.schedules.stale_uploads import as_it_counts


class Repeated:
    """Does what a record says: which client was trained on which version, for which step."""

    def __init__(self, desk, rows, config):
        self.desk, self.rows, self.config, self.sent = desk, rows, config, []

    def collect(self, step):
        """Train what the step had."""
        desk = self.desk
        self.sent.append(dict(desk.downloads(desk.members().tolist())))
        flights = {int(c): v for c, v in self.rows[step].schedule["versions"].items()}
        came = desk.train({c: (v, self.sent[v][c]) for c, v in flights.items()})
        uploads = desk.accept({c: (flights[c], reply) for c, reply in came.items()})
        assert sorted(uploads) == sorted(flights)
        weighed = {}
        for client in sorted(uploads):
            download = self.sent[flights[client]][client]
            weighed[client] = as_it_counts(desk, self.config, client, uploads[client], download)
        return weighed

    def is_due(self, step):
        """Return False."""
        return False

    def line(self):
        """Return nothing."""
        return {}

    def state(self):
        """Return nothing."""
        return {}


def assert_repeatable(out, tmp_path, **options):
    """Check that a simulation of the record has the same server and clients, bit for bit.

    Args:
        out: The run folder.
        tmp_path: A folder for a file.
        options: Options of the run.
    """
    rows = pf.load_run(out).rows
    plan = Plan.make(options | {"backend": "local"})
    federation = Federation(plan, host := pf.backends.Host(plan))
    federation.start_trial(0)
    federation._schedule = Repeated(federation._desk, rows, plan.choices["schedule"].config)
    for number in range(len(rows)):
        row, _ = federation.round(number)
        assert row.train_loss == rows[number].train_loss
    weights = pf.read_weights(out, "last", clients=[]).server
    for key, tensor in federation.server.global_state.items():
        assert tensor.numpy().tobytes() == weights[f"global_state/{key}"].numpy().tobytes()
    commit = Commit.read(out / "checkpoint/manifest.json")
    for client, (_, check) in commit.client_files.items():
        host.handle(Save(client, str(tmp_path / "own")))
        assert checks_of([tmp_path / "own"]) == [check]
    assert commit.client_files
    return rows
