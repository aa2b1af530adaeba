"""Tests of the runtime with every installed method, in addition to the method contract."""

from __future__ import annotations

import itertools
from typing import get_args

import golden_runs
import pytest
from slowness import KINDS, quick

import protofl as pf
from protofl import VariantConfig
from protofl.backends import Absent
from protofl.federation.clients import host
from protofl.federation.jobs.jobs import Train, Undo
from protofl.federation.round.federation import Federation
from protofl.federation.round.participation import Participation
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.views.snapshots import pack_server
from protofl.records.row import Row
from protofl.records.run_folder import RunFolder
from protofl.runs.results.configuration import config_of
from protofl.testing import MethodContract
from protofl.testing import toy as toyfed
from protofl.testing.donors import methods_to_run
from protofl.testing.method_federations import WIDTHS, WITH_NORM
from protofl.testing.method_runs import as_declared

REGISTRY = Registry()
METHODS = methods_to_run(REGISTRY)


def ways(*values, first):
    """Return pairs (method, value): all values for one method of each kind, else `first`."""
    pairs = [(method, value) for method in KINDS for value in values]
    pairs += [(method, first) for method in METHODS if method not in KINDS]
    chosen = [pair for pair in pairs if pair[1] == first and pair[0] in KINDS]
    return quick(pairs, *chosen)


@pytest.fixture(params=quick(METHODS, *KINDS), scope="module")
def method(request):
    return request.param


@pytest.fixture(scope="module")
def fed(method):
    """Provide ``fed(**options)``: a toy federation of the method, heterogeneous if possible."""
    contract = type("Installed", (MethodContract,), {"plugin": method})()
    contract.setup_method()
    yield contract.fed
    contract.teardown_method()


@pytest.fixture(scope="module")
def half(fed):
    """Return a run of four rounds with half of the clients each, and all states (read-only)."""
    found = fed(rounds=4, participation=0.5)
    found.rounds(4)
    return found, [toyfed.own_state(found.client(number)) for number in range(4)]


# --- payloads -----------------------------------------------------------------------------------


def test_what_is_sent_is_what_is_declared(method, fed):
    """All declared keys are sent by some run, except buffers, which not all models have."""
    plugin = REGISTRY.load("method", method)
    config = getattr(plugin, "Config", pf.Config)
    variants = ["paper", "official"] if issubclass(config, VariantConfig) else []
    runs = [{"set": {"variant": variant}} for variant in variants] or [{}]
    runs += [{"set": own} for name, own in golden_runs.FURTHER.values() if name == method]
    head = config.model_fields.get("head")  # FedSA-LoRA keeps heads on clients by default
    if head is not None and "average" in get_args(head.annotation):
        runs.append({"set": {"head": "average"}})
    if getattr(plugin, "native_widths", False):
        runs.append({"models": [WIDTHS, WITH_NORM], "feature_dim": "native"})
    sent = {"uploads": set(), "downloads": set()}
    for options in runs:
        found = fed(**options)
        found.rounds(2)
        for direction, keys in sent.items():
            for number in range(2):
                for blob in getattr(found.pool, direction)(number).values():
                    keys |= {*toyfed.header(blob)}
    for direction, keys in sent.items():
        declared = {*getattr(plugin, direction)}
        names = as_declared(keys, declared)
        # PART/* besides PART/*/NAME may be for rounds that a client has missed (FLoRA).
        further = {d for d in declared if any(name.startswith(f"{d}/") for name in names)}
        further |= {d for d in declared if d.endswith("/buffer/*")}
        declared -= further - names
        if direction == "downloads":
            rows = {"classes", *(f"{d}.classes" for d in declared)}
            names -= rows - declared
        assert names == declared, direction


# --- equal runs ---------------------------------------------------------------------------------


def test_trial_k_of_seed_s_is_a_run_with_seed_s_plus_k(fed):
    images = toyfed.make_images([[12, 12, 12, 12], [12, 12, 12, 12]], given_split=False)
    options = {"data": images, "participation": 0.5, "partition": "dirichlet"}
    second = fed(trial=2, seed=3, trials=3, **options)
    alone = fed(seed=5, **options)
    for found in (second, alone):
        for line in found.rounds(2):
            line.pop("trial")
    assert toyfed.same(toyfed.fingerprint(second), toyfed.fingerprint(alone))


# --- absent clients -----------------------------------------------------------------------------


class Losing:
    """Replace a pool's ``run``: one client per round does not answer, whether it trained or not."""

    def __init__(self, host):
        self.host, self.run, self.answered = host, host.run, {}

    def __call__(self, jobs):
        trains = [j for j in jobs if isinstance(j, Train) and j.when == "before_upload"]
        gone = trains[trains[0].round % len(trains)] if len(trains) > 1 else None
        for job in trains:
            if job is not gone:
                self.answered.setdefault((0, job.round), []).append(job.client)
        for job, reply in self.run([job for job in jobs if job is not gone]):
            yield job, reply
        if gone is not None:
            assert gone.may_fail
            if gone.round % 2:
                self.host.handle(gone)
                self.host.handle(Undo(gone.client))
            yield gone, Absent(reason="deadline")


@pytest.mark.parametrize(
    ("method", "store"), ways("live", "pinned", "disk", first="disk"), indirect=["method"]
)
def test_an_absent_client_is_as_if_it_had_not_trained(fed, monkeypatch, store):
    """A run with absent clients is bit-identical to a run of only the other participants."""
    common = {"rounds": 3, "participation": 1.0, "lr": 0.01}  # FPL diverges at 0.05
    options = {**common, "on_lost_client": "skip", "on_bad_upload": "skip"}
    with monkeypatch.context() as patch:
        found = fed(**kept(store, patch) | options)
    losing = Losing(found.pool.host)
    found.pool.host.run = losing
    found.rounds(3)
    whole = fed(**common)
    recorded = {at: Row({"answered": sorted(c)}) for at, c in losing.answered.items()}
    replay = Participation(whole.plan, recorded)
    whole.federation = Federation(whole.plan, whole.pool, participation=replay)
    whole.federation.start_trial(0)
    whole.rounds(3)
    absent = [line.pop("absent") for line in found.lines]
    assert all(list(words.values()) == ["deadline"] for words in absent)
    assert len({*map(str, absent)}) > 1
    assert toyfed.same(found.lines, whole.lines)
    assert toyfed.same(*(toyfed.server_state(run.server) for run in (found, whole)))
    for client in range(found.plan.info.num_clients):
        assert toyfed.same(*(toyfed.own_state(run.client(client)) for run in (found, whole)))


# --- where clients are kept ---------------------------------------------------------------------


def kept(store, monkeypatch):
    """Return options to store clients as on a CPU, as on an accelerator, or on disk."""
    if store == "pinned":
        monkeypatch.setattr(host, "store_kind", lambda *_, dry, **__: "live" if dry else "pinned")
    return {"client_store": "disk" if store == "disk" else "memory", "participation": 0.5}


@pytest.mark.parametrize(
    ("method", "store"), ways("pinned", "disk", first="disk"), indirect=["method"]
)
def test_where_clients_are_kept_changes_nothing(fed, half, monkeypatch, store):
    live, states = half
    with monkeypatch.context() as patch:
        found = fed(rounds=4, **kept(store, patch))
    found.rounds(4)
    trained = {job.client for job, _ in found.pool.trained}
    chosen = [{*found.pool.uploads(number)} for number in range(4)]
    assert any(a & b for a, b in itertools.combinations(chosen, 2)), "nobody came back"
    assert found.pool.host.client(0) is not found.pool.host.client(0), "it is live"
    for client in trained:
        assert toyfed.same(states[client], toyfed.own_state(found.client(client)))
    lines = [toyfed.fingerprint(run)[:2] for run in (live, found)]
    assert toyfed.same(*lines)


@pytest.mark.parametrize(
    ("method", "stores"),
    ways("disk packed", "live disk", first="live disk"),
    indirect=["method"],
)
def test_a_run_may_go_on_elsewhere(fed, half, monkeypatch, tmp_path, stores):
    """A run interrupted after a commit resumes from its files with another client store."""
    (whole, states), (first, then) = half, stores.split()
    with monkeypatch.context() as patch:
        cut = fed(rounds=4, **kept(first, patch))
    folder = RunFolder.create(tmp_path / "run", config_of(cut.plan))
    for number in range(2):
        line = Row(cut.rounds(1)[-1])
        clients = sorted(cut.pool.uploads(number))
        paths = folder.client_paths(clients, 0, number)
        cut.federation.save_clients(clients, paths)
        server = pack_server(cut.federation.server)
        folder.commit_round(line, server, cut.federation.holders, paths)
    cut.rounds(1)  # this round is lost
    with monkeypatch.context() as patch:
        again = fed(rounds=4, **kept(then, patch))
    again.federation.resume(RunFolder.reopen(tmp_path / "run"))
    again.lines = cut.lines[:2]
    again.rounds(2)
    assert toyfed.same(*(toyfed.fingerprint(run)[:2] for run in (whole, again)))
    for number, state in enumerate(states):
        assert toyfed.same(state, toyfed.own_state(again.client(number)))


# --- clients that join later, or never ------------------------------------------------------------


def test_a_client_that_never_trains_is_scored_and_fine_tuned(fed):
    """A client that joins later takes part."""
    found = fed(unseen=1, fine_tune=2, join_round="2:0.3", validation=0.25, rounds=2)
    first, last = found.rounds(2)
    (unseen,), (joined,) = last["unseen"], last["joined"]
    asked = [{job.client for job, _ in found.pool.trained if job.round == n} for n in range(2)]
    assert joined not in asked[0] and asked[1] == {*range(4)} - {unseen}
    assert unseen not in found.pool.host.trained
    for line, figures in ((first, ["unseen"]), (last, ["unseen", "fine_tuned"])):
        for name in figures:
            assert 0 <= line[f"{name}_accuracy"] <= 1
            assert [*line[f"client_{name}_accuracies"]] == [str(unseen)]
    assert "fine_tuned_accuracy" not in first
