"""Tests of stale uploads: their weights and what becomes of them, by hand; and refusals."""

from __future__ import annotations

import pytest
import torch
from fake_pools import KeepingPool
from runtime_toys import DATA, GIVEN, PARTS
from schedule_toys import ASYNC, Own, federation_of

import protofl as pf
from protofl.backends import Plan
from protofl.federation.round.schedules import check_pool, check_schedule
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing.toy_plugins import Prototypes, Weights
from protofl_plugins.schedules.buffered import Buffered
from protofl_plugins.schedules.options import staleness_weight
from protofl_plugins.schedules.stale_uploads import mixed


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({"a": 0}, {0: 1, 7: 1}),
        ({}, {0: 1, 3: 1 / 2, 8: 1 / 3}),  # FedBuff: 1/√(1 + τ)
        ({"a": 2}, {0: 1, 1: 1 / 4, 4: 1 / 25}),
    ],
)
def test_the_weight_of_staleness(options, weights):
    config = Buffered.Config(**options)
    found = {age: staleness_weight(config, age) for age in weights}
    assert found == pytest.approx(weights)


def upload(version=0, staleness=2, **tensors):
    result = pf.Payload(tensors)
    result.version, result.staleness = version, staleness
    return result


def test_class_rows_are_mixed_for_the_classes_that_the_server_has():
    sent = upload(
        prototypes=torch.tensor([[4.0, 0.0], [8.0, 8.0]]),
        classes=torch.tensor([2, 0]),
        counts=torch.tensor([3, 5]),
    )
    now = pf.Payload(
        prototypes=torch.tensor([[0.0, 4.0], [1.0, 1.0]]), classes=torch.tensor([2, 1])
    )
    found = mixed(sent, now, None, 0.25, 3)
    assert found["prototypes"].tolist() == [[1.0, 3.0], [8.0, 8.0]]
    assert found["counts"] is sent["counts"]
    assert (found.version, found.staleness) == (0, 2)
    assert mixed(sent, now, None, 1.0, 3) is sent


def test_an_update_is_relative_to_the_version_that_was_downloaded():
    sent = upload(**{"model/w": torch.tensor([5.0, 7.0]), "samples": torch.tensor([9])})
    now = pf.Payload({"model/w": torch.tensor([10.0, 10.0])})
    base = pf.Payload({"model/w": torch.tensor([1.0, 9.0])})
    found = mixed(sent, now, base, 0.5, 3)
    assert found["model/w"].tolist() == [12.0, 9.0]
    assert mixed(sent, now, base, 1.0, 3)["model/w"].tolist() == [14.0, 8.0]
    sent.staleness = 0
    assert mixed(sent, now, base, 1.0, 3) is sent


STEPS = []
"""The server's state, the uploads and the result of each step."""


class Kept(Weights):
    """All weights are averaged; and the arguments of each step are kept."""

    asynchronous = "versions"

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        """Return the mean."""
        result = super().server_aggregate(server, uploads)
        STEPS.append((dict(server.global_state), dict(uploads), dict(result)))
        return result


def test_the_server_s_steps_are_those_of_fedbuff_by_hand():
    STEPS.clear()
    settings = {"buffer": 2, "concurrency": 4, "mixing": 0.5}
    federation, _ = federation_of(Kept, Own, settings, models="toy1", rounds=8)
    raw, accept = [], federation._coordinator.accept

    def keep(tasks):
        result = accept(tasks)
        raw.append({client: dict(sent) for client, sent in result.items()})
        return result

    federation._coordinator.accept = keep
    for number in range(8):
        federation.round(number)
    ages, compared = set(), 0
    for number, (state, uploads, result) in enumerate(STEPS):
        for key in result:
            total = 0
            for client, sent in uploads.items():
                age = sent.staleness
                ages.add(age)
                assert sent.version == number - age
                if not sent.version:  # the clients' own models, as the server has none yet
                    continue
                # η_g/K · Σ s(τ)·(y_i − x_{t−τ}), s(τ) = 1/√(1 + τ)
                before = STEPS[sent.version][0][key]
                delta = raw[number][client][key] - before
                total = total + 0.5 * (1 + age) ** -0.5 * delta / len(uploads)
            if all(sent.version for sent in uploads.values()):
                compared += 1
                torch.testing.assert_close(result[key], state[key] + total, rtol=1e-5, atol=1e-6)
    assert max(ages) > 0
    assert compared > 10


SEEN = []
"""{client: version and staleness of its upload} of each step."""


class ReadsStaleness(Prototypes):
    """Prototypes whose server reads how old uploads are, and keeps absent classes."""

    asynchronous = True

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        """Return the mean of the uploads, beside what the server has."""
        SEEN.append({c: (u.version, u.staleness) for c, u in uploads.items()})
        new, known = super().server_aggregate(server, uploads).table("prototypes", 4)
        if "prototypes" in server.global_state:
            old, had = server.global_state.table("prototypes", 4)
            new, known = torch.where(known[:, None], new, old), known | had
        return pf.class_rows(known, prototypes=new)


def test_a_method_reads_version_and_staleness_of_each_upload():
    SEEN.clear()
    federation, _ = federation_of(ReadsStaleness, Own, {"buffer": 2}, rounds=9)
    rows = [federation.round(number)[0] for number in range(9)]
    for number, (row, seen) in enumerate(zip(rows, SEEN, strict=True)):
        assert all(version + age == number for version, age in seen.values())
        assert row.schedule["staleness"]["max"] == max(age for _, age in seen.values())


# --- refusals -------------------------------------------------------------------------------------


def plan_of(method="fedproto", **options):
    extra = PARTS | {("device-model", "own"): Own}
    if isinstance(method, type):
        extra["method", "main"] = method
        method = "main"
    given = GIVEN | ASYNC | {"data_dir": DATA, "dry_run": True} | options
    return Plan.make(given | {"method": method}, extra)


class Silent(Prototypes):
    """A method that does not say whether it runs without rounds."""


class NeedsAll(Prototypes):
    """A method that needs all clients."""

    asynchronous = "its equation has a sum over all clients"


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("fedproto", {"devices": None}, "--schedule buffered acts in virtual time"),
        (Silent, {}, "main does not say whether it runs without rounds"),
        (NeedsAll, {}, "main needs rounds: its equation has a sum over all clients"),
        ("fedmd", {"public": 16}, "fedmd"),
        ("fedproto", {"deadline": 5}, "--deadline 5.0 with --schedule buffered"),
        ("fedproto", {"participation": 0.5, "over_select": 0.5}, "--over-select 0.5"),
        ("fedproto", {"options": {"timing": {"buffer": 7}}}, "the run has 6 clients that train"),
        ("fedproto", {"options": {"timing": {"concurrency": 9}}}, "timing.concurrency=9"),
        ("fedproto", {"min_clients": 4}, "the server acts on 3 uploads"),
        (
            "fedavg",
            {"models": "toy1", "transforms": ["quantise"], "timing": "continuous"},
            "--with quantise",
        ),
    ],
)
def test_runs_that_need_rounds_are_refused_before_training(method, options, words):
    with pytest.raises(pf.UsageError) as caught:
        check_schedule(plan_of(method, **options))
    assert words in caught.value.what
    assert caught.value.do


class Claims(Prototypes):
    """A method that claims to run without rounds, and forgets classes that no upload has."""

    asynchronous = True


class Fails(Weights):
    """A method that claims to run without rounds, and needs two uploads."""

    asynchronous = "versions"

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        """Return the mean of all."""
        if len(uploads) < 2:
            raise ValueError("where are the others?")
        return super().server_aggregate(server, uploads)


def test_the_dry_run_finds_a_method_that_does_not_do_what_it_declares():
    with pytest.raises(pf.UsageError, match=r"main forgets .*prototypes of class 3 is gone"):
        dry_run(plan_of(Claims))
    with pytest.raises(pf.UsageError, match="fails with the upload of one of two clients"):
        dry_run(plan_of(Fails, models="toy1"))
    dry_run(plan_of(ReadsStaleness))


def test_a_backend_that_keeps_the_clients_files_is_refused(tmp_path):
    plan = plan_of()
    with pytest.raises(pf.UsageError, match="the clients' files stay on their own machines"):
        check_pool(plan, KeepingPool(plan, tmp_path))
    check_pool(plan, pf.backends.Host(plan))
