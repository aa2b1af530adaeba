"""Tests of client storage: untrained clients have no file, and files are written once."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
from copy import deepcopy

import pytest
import torch
from runtime_toys import make_plan, open_federation, without_times
from torch import nn

import protofl as pf
from protofl.federation.clients import client_store as store
from protofl.federation.clients import host
from protofl.federation.jobs.jobs import Drop, Evaluate, Load, Save, StartTrial, Train
from protofl.system.files.atomic import link_or_copy
from protofl.system.files.tensors import read_tensors, write_tensors

KINDS = ("live", "pinned", "disk")


FAILING = set()
"""Rounds in which training fails."""


class Counting:
    """Counts rounds in each client's state, and adds a module."""

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def setup_client(self, client):
        client.add_module("gate", nn.Linear(2, 2))
        client.state["first"] = client.module("head").weight[0, 0].item()

    @pf.hookimpl
    def local_loss(self, client, batch, output, constants):
        if constants["round"] in FAILING:
            raise ValueError("half of it is done")
        return {"ce": nn.functional.cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def before_training(self, client):
        client.state["rounds"] = client.state.get("rounds", 0) + 1
        return {"round": client.round}

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload(rounds=torch.tensor(float(client.state["rounds"])))


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def make(kind, monkeypatch):
    """Return ``make(method, **options)``, which starts a host with one of the three stores."""
    monkeypatch.setattr(host, "store_kind", lambda *_, **__: kind)

    def start(method=Counting, parked=None, files=None, **options):
        made = pf.backends.Host(make_plan(method, **options))
        made.handle(StartTrial(0, files or {}, parked and str(parked)))
        return made

    return start


def train_one(made, client, round=0):
    return made.handle(Train(client, round))


def evaluate(made, client):
    return made.handle(Evaluate(client, 0)).correct


def weights(made, client):
    found = made.client(client)
    return [t.clone() for t in found.model.state_dict().values()], deepcopy(found.state)


def equal(one, two):
    return one[1] == two[1] and all(torch.equal(a, b) for a, b in zip(one[0], two[0], strict=True))


# --- stored clients ------------------------------------------------------------------------------


def test_a_client_that_never_trained_is_kept_nowhere(make, tmp_path):
    made = make(parked=tmp_path / "run" / "parked")
    (tmp_path / "run").mkdir()
    correct = [evaluate(made, client) for client in range(4)]
    assert made.trained == set()
    assert not list(tmp_path.rglob("*.safetensors"))
    seed = weights(made, 1)
    train_one(made, 1)
    assert made.trained == {1}
    assert not equal(seed, weights(made, 1))
    assert [evaluate(made, client) for client in (0, 2, 3)] == [correct[i] for i in (0, 2, 3)]
    assert made.trained == {1}


def test_set_up_and_the_first_round_build_participants_alone(monkeypatch):
    built = []
    original = pf.backends.Plan.initial_model

    def counted(plan, client, trial):
        built.append(client)
        return original(plan, client, trial)

    monkeypatch.setattr(pf.backends.Plan, "initial_model", counted)
    plan = make_plan("fedsa", clients=24, participation=0.1, eval_clients="participants")
    federation = open_federation(plan)
    assert built == []
    _, clients = federation.round(0)
    assert set(built) == set(clients)
    assert len(clients) == 2


def test_a_failed_job_leaves_a_parked_client_as_it_was(make, kind):
    if kind == "live":
        pytest.skip("a live client is what is worked on")
    made = make()
    train_one(made, 0)
    before = weights(made, 0)
    FAILING.add(1)
    try:
        with pytest.raises(pf.RunFailure, match="half of it is done"):
            train_one(made, 0, round=1)
    finally:
        FAILING.clear()
    assert equal(before, weights(made, 0))
    assert before[1]["main"]["rounds"] == 1


# --- files ---------------------------------------------------------------------------------------


def test_a_client_moves_to_another_host(make, tmp_path):
    stays, here, there = make(), make(), make()
    for made in (stays, here):
        train_one(made, 2)
    path = tmp_path / "client.safetensors"
    here.handle(Save(2, str(path)))
    there.handle(Load(2, str(path)))
    here.handle(Drop(2))
    content = path.read_bytes()
    assert equal(weights(stays, 2), weights(there, 2))
    assert evaluate(stays, 2) == evaluate(there, 2)
    assert here.trained == set()
    assert equal(weights(here, 2), weights(make(), 2))  # rebuilt from its seed
    for made in (stays, there):
        train_one(made, 2, round=1)
    assert equal(weights(stays, 2), weights(there, 2))
    assert path.read_bytes() == content, "a file that was given is not written to"
    there.handle(Drop(2))
    assert path.exists()


def test_a_client_is_brought_back_to_an_earlier_file(make, tmp_path):
    made, path = make(), tmp_path / "client.safetensors"
    train_one(made, 0)
    before = weights(made, 0)
    made.handle(Save(0, str(path)))
    train_one(made, 0, round=1)
    assert not equal(before, weights(made, 0))
    made.handle(Load(0, str(path)))
    assert equal(before, weights(made, 0))


def test_a_missing_file_is_named(make, tmp_path):
    made = make()
    made.handle(Load(0, str(tmp_path / "gone.safetensors")))
    with pytest.raises(pf.RunFailure, match=r"gone\.safetensors"):
        evaluate(made, 0)


def test_files_of_a_trial_are_forgotten_with_it(make, tmp_path):
    (tmp_path / "run").mkdir()
    parked = tmp_path / "run" / "parked"
    made = make(parked=parked)
    train_one(made, 0)
    made.handle(StartTrial(1, parked=str(parked)))
    assert made.trained == set()
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_host_that_does_not_see_the_run_folder_has_its_own(make, kind, tmp_path, monkeypatch):
    if kind != "disk":
        pytest.skip("nothing is parked")
    (tmp_path / "system").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "system"))
    made = make(parked=tmp_path / "elsewhere" / "parked")
    train_one(made, 0)
    assert len(list((tmp_path / "system").glob("*/*.safetensors"))) == 1
    assert not (tmp_path / "elsewhere").exists()
    del made
    gc.collect()
    assert not list((tmp_path / "system").iterdir())


@pytest.mark.parametrize("error", [None, errno.EXDEV, errno.EPERM])
def test_a_second_name_for_a_file(tmp_path, monkeypatch, error):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"first")
    if error:

        def refuse(*_):
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr(os, "link", refuse)
    link_or_copy(one, two)
    link_or_copy(one, two)  # again, over an existing target
    assert two.read_bytes() == b"first"
    assert os.path.samefile(one, two) == (error is None)
    (tmp_path / "new").write_bytes(b"second")
    os.replace(tmp_path / "new", one)
    assert two.read_bytes() == b"first"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]


TYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def test_tensors_of_all_types_lie_where_they_can_be_mapped(tmp_path):
    tensors = {str(t): torch.arange(3).to(t) for t in TYPES[::-1]}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "turned": torch.eye(3).T}
    tensors["layout"] = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    write_tensors(tmp_path / "x", tensors, {"value": "ü"})
    found, header = read_tensors(tmp_path / "x")
    assert header == {"value": "ü"}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def test_a_type_that_no_file_holds(tmp_path):
    with pytest.raises(pf.RunFailure, match="complex64"):
        write_tensors(tmp_path / "x", {"z": torch.zeros(2, dtype=torch.complex64)}, {})
    assert not list(tmp_path.iterdir())


# --- reuse of models -----------------------------------------------------------------------------


class Hooking:
    """Adds a forward hook to its clients' models, which the weights do not contain."""

    @pf.hookimpl
    def after_training(self, client):
        client.module("head").register_forward_hook(lambda *_: None)


class Plain:
    """Only cross-entropy."""

    @pf.hookimpl
    def after_training(self, client):
        client.state["seen"] = True


@pytest.mark.parametrize(
    ("method", "fresh"),
    [(Plain, 0), (Counting, 8), (Hooking, 8)],
    ids=["again", "set-up sees the model", "a method has changed it"],
)
def test_a_parked_client_takes_over_a_model(monkeypatch, method, fresh):
    made = pf.backends.Host(make_plan(method, client_store="disk"))
    made.handle(StartTrial(0))
    for client in range(4):
        train_one(made, client)
    built = []
    original = pf.backends.Plan.initial_model
    monkeypatch.setattr(
        pf.backends.Plan, "initial_model", lambda *given: built.append(1) or original(*given)
    )
    for _ in range(2):
        for client in range(4):
            train_one(made, client, round=1)
    assert len(built) == fresh


def test_memory_is_host_memory():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    found = [store.store_kind("memory", d, dry=False) for d in (cpu, cuda)]
    assert found == ["live", "pinned"]
    assert {store.store_kind("device", d, dry=False) for d in (cpu, cuda)} == {"live"}
    assert {store.store_kind("disk", d, dry=False) for d in (cpu, cuda)} == {"disk"}
    assert store.store_kind("disk", cuda, dry=True) == "live"


def test_downloads_that_differ_are_prepared_a_part_at_a_time(monkeypatch):
    class Own:
        """Sends each client a different download."""

        @pf.hookimpl
        def download_payload(self, server, client_id):
            return pf.Payload(x=torch.full((100,), float(client_id)))

        @pf.hookimpl
        def inference(self, client, x):
            assert client.received["x"].eq(client.id).all()
            return torch.eye(4)[client.id % 4].expand(len(x), 4)

    whole = open_federation(make_plan(Own)).round(0)[0]
    monkeypatch.setattr("protofl.federation.round.server_side.AHEAD", 900)
    federation = open_federation(make_plan(Own))
    sizes, original = [], federation.pool.run

    def counted(jobs):
        sizes.append([job.client for job in jobs])
        return original(jobs)

    federation.pool.run = counted
    assert without_times([federation.round(0)[0]]) == without_times([whole])
    assert [len(s) for s in sizes] == [4, 2, 2]
