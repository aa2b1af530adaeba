"""Tests of clients and samples beside a device with streams: where they lie, and what is copied."""

from __future__ import annotations

import gc
import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from runtime_toys import install, lines_of, make_plan, open_federation, train, without_times
from slowness import quick
from torch import nn

import protofl as pf
from protofl.federation.clients import parked
from protofl.federation.jobs.jobs import Evaluate, Save, StartTrial, Train, Undo
from protofl.federation.plan import store_choice
from protofl.runs.dry_run.short_rounds import dry_run, for_dry_rounds
from protofl_plugins.engines.eager import Eager

STORES = ("auto", "device", "memory", "disk")

WEIGHTS = {2416, 1584}
"""Bytes of the two architectures' weights in one piece."""

SAMPLES = 96 * 64
"""Bytes of all samples."""


class Local:
    """Local training, which sends one number."""

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload(x=torch.zeros(1))


class Counting:
    """Counts rounds in each client's state, and adds a module; has a step after the server's."""

    @pf.hookimpl
    def setup_client(self, client):
        client.add_module("gate", nn.Linear(2, 2))
        client.state["mean"] = torch.zeros(3, device=client.device)

    @pf.hookimpl
    def before_training(self, client):
        client.state["mean"] = client.state["mean"] + client.module("head").weight.mean()

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload(mean=client.state["mean"])


@pytest.fixture
def no_room(monkeypatch):
    """No client stays on the device beside its copy elsewhere."""
    monkeypatch.setattr(parked, "free_memory", lambda device: 0)


def of_weights(gpu, way):
    return sum(size in WEIGHTS for direction, size in gpu.copies if direction == way)


def on(store, method=Local, **options):
    return make_plan(method, device="simgpu", client_store=store, **options)


# --- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", quick([Counting, "fedproto", "ds-fl"], "ds-fl"))
def test_results_do_not_depend_on_the_store(gpu, monkeypatch, method):
    options = {"rounds": 3, "participation": 0.75} | ({"public": 10} if method == "ds-fl" else {})
    expected = without_times(lines_of(make_plan(method, **options)))
    for store in STORES:
        assert without_times(lines_of(on(store, method, **options))) == expected, store
    monkeypatch.setattr(parked, "free_memory", lambda device: 0)
    for store in ("memory", "disk"):
        assert without_times(lines_of(on(store, method, **options))) == expected, store


def test_a_failed_job_leaves_a_client_as_it_was(gpu):
    class Failing(Counting):
        @pf.hookimpl
        def after_training(self, client):
            if client.round == 1:
                raise ValueError("half of it is done")

    host = pf.backends.Host(on("memory", Failing))
    host.handle(StartTrial(0))
    host.handle(Train(0, 0))
    before = [t.cpu() for t in host.client(0).model.state_dict().values()]
    with pytest.raises(pf.RunFailure, match="half of it is done"):
        host.handle(Train(0, 1))
    after = host.client(0).model.state_dict().values()
    assert all(torch.equal(a, b.cpu()) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("store", ["device", "memory"])
def test_a_client_is_put_back(gpu, store):
    host = pf.backends.Host(on(store, Counting))
    host.handle(StartTrial(0))
    host.handle(Train(0, 0))
    before = host.client(0).state["main"]["mean"].tolist()
    host.handle(Train(0, 1, may_be_undone=True))
    assert host.client(0).state["main"]["mean"].tolist() != before
    host.handle(Undo(0))
    assert host.client(0).state["main"]["mean"].tolist() == before


# --- copies of weights ---------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["auto", "device"])
def test_on_the_device_no_weights_are_copied(gpu, store):
    federation = open_federation(on(store))
    federation.round(0)
    gpu.copies.clear()
    federation.round(1)
    sizes = [size for way, size in gpu.copies]
    assert max(sizes) < min(WEIGHTS) / 4  # rows of samples, downloads and uploads
    assert gpu.count("to host") == 4  # an upload of each client


def test_a_checkpoint_copies_a_client_in_one_piece(gpu, tmp_path):
    federation = open_federation(on("device"))
    federation.round(0)
    gpu.copies.clear()
    federation.pool.handle(Save(0, str(tmp_path / "client")))
    assert gpu.copies == [("to host", 2416)]


def test_in_host_memory_each_client_is_copied_once_each_way_and_stage(gpu, no_room):
    federation = open_federation(on("memory"))
    federation.round(0)
    gpu.copies.clear()
    gpu.waits.clear()
    federation.round(1)
    assert of_weights(gpu, "to host") == 4
    assert of_weights(gpu, "to device") == 4 + 4  # for training, and for evaluation
    assert gpu.waits["synchronize"] == 4  # for an upload of each client


def test_a_client_that_fits_stays_beside_its_copy(gpu, tmp_path):
    for store in ("memory", "disk"):
        federation = open_federation(on(store))
        federation.round(0)
        gpu.copies.clear()
        federation.round(1)
        assert of_weights(gpu, "to host") == 4
        assert of_weights(gpu, "to device") == 0
    gpu.copies.clear()
    federation.pool.handle(Save(0, str(tmp_path / "client")))
    assert gpu.copies == []


def test_who_is_needed_takes_the_room_of_others(gpu, monkeypatch):
    monkeypatch.setattr(parked, "free_memory", lambda device: 2416)  # for one client
    host = pf.backends.Host(on("memory", models="toy1"))
    host.handle(StartTrial(0))
    [*host.run([Train(0, 0), Train(1, 0)])]
    gpu.copies.clear()
    [*host.run([Evaluate(0, 0)])]
    assert of_weights(gpu, "to device") == 0
    [*host.run([Train(1, 1), Evaluate(1, 1)])]
    assert of_weights(gpu, "to device") == 1


# --- the next client comes while one works -------------------------------------------------------


def test_the_next_client_is_copied_beside_the_work(gpu, no_room, monkeypatch):
    host = pf.backends.Host(on("memory"))
    host.handle(StartTrial(0))
    [*host.run([Train(client, 0) for client in range(4)])]
    order, train, fetched = [], Eager.train, parked.Parked.fetched
    monkeypatch.setattr(Eager, "train", lambda self, job: order.append("train") or train(self, job))
    monkeypatch.setattr(
        parked.Parked, "fetched", lambda self: order.append("fetch") or fetched(self)
    )
    gpu.copies.clear()
    gpu.copy_streams.clear()
    [*host.run([Train(client, 1) for client in range(4)])]
    assert order == ["fetch", "fetch", "train", "fetch", "train", "fetch", "train", "train"]
    streams = {
        (way, stream)
        for (way, size), stream in zip(gpu.copies, gpu.copy_streams, strict=True)
        if size in WEIGHTS
    }
    assert len(streams) == 2 and gpu.default.number not in {stream for _, stream in streams}


class Groups:
    """Trains two clients at once, each with some memory of its own."""

    need = 0

    class Config(pf.Config):
        """Options."""

        streams: int = 2

    @pf.hookimpl
    def choose_groups(self, architectures, config):
        places = range(len(architectures))
        return [[*places[at : at + config.streams]] for at in places[:: config.streams]]

    @pf.hookimpl
    def train(self, job):
        return self.train_group([job])[0]

    @pf.hookimpl
    def train_group(self, jobs):
        memory = [torch.empty(self.need, dtype=torch.uint8, device=job.device) for job in jobs]
        result = []
        for job in jobs:
            with job.stream():
                result.append(Eager().train(job))
        del memory
        return result


def in_groups(store, streams=2, **options):
    """Return a plan with the engine of this file, at work where the device computes in streams."""
    plan = on(store, **options)
    extra = {**plan.registry.extra, ("engine", "groups"): Groups}
    given = plan.settings.model_dump() | {
        "engine": "groups",
        "options": {"groups": {}, "engine": {"streams": streams}},
        "method": plan.settings.method,
    }
    del given["options"]["groups"]
    return type(plan).make(given, extra)


def test_the_next_group_is_copied_beside_the_work(gpu, no_room, monkeypatch):
    host = pf.backends.Host(in_groups("memory"))
    host.handle(StartTrial(0))
    jobs = [[Train(client, number) for client in range(4)] for number in range(2)]
    [*host.run(jobs[0])]
    order, train, fetched = [], Eager.train, parked.Parked.fetched
    monkeypatch.setattr(Eager, "train", lambda self, job: order.append("train") or train(self, job))
    monkeypatch.setattr(
        parked.Parked, "fetched", lambda self: order.append("fetch") or fetched(self)
    )
    [*host.run(jobs[1])]
    assert order == ["fetch"] * 4 + ["train"] * 4


# --- the choice ----------------------------------------------------------------------------------


def test_the_choice(gpu, monkeypatch):
    info, settings = (plan := on("auto", clients=20)).info, plan.settings
    sizes = [*store_choice.client_sizes(info, 20, 100)]
    models = [
        sum(t.numel() * 4 for t in info.unset_model(a).parameters()) for a in info.architectures
    ]
    assert sizes == [models[client % 2] + 100 for client in range(20)]
    assert [*store_choice.client_sizes(info, 2, None)] == [2 * size for size in models]
    total = sum(sizes)
    store, line = store_choice.choose_store(info, settings, 2 * total, 100)
    assert store == "device" and line.startswith("clients stay on the device: ")
    monkeypatch.setattr(store_choice, "free_ram", lambda: 2 * 20 * 4096)
    store, line = store_choice.choose_store(info, settings, 2 * total - 2, 100)
    assert store == "memory" and "more than half of the" in line
    monkeypatch.setattr(store_choice, "free_ram", lambda: total)
    store, line = store_choice.choose_store(info, settings, 2 * total - 2, 100)
    assert store == "disk" and "free host memory" in line


def test_several_cards_divide_the_clients(gpu):
    info, settings = (plan := on("auto", clients=20)).info, plan.settings
    total = sum(store_choice.client_sizes(info, 20, 100))
    two = settings.model_copy(update={"device": "cuda:0,cuda:1", "backend": "process"})
    assert store_choice.choose_store(info, settings, total, 100)[0] != "device"
    assert store_choice.choose_store(info, two, total, 100)[0] == "device"
    sharing = [
        store_choice.sharers(two.model_copy(update={"device": device, "workers": workers}))
        for device, workers in [("cuda:0,cuda:1", 0), ("cuda:0,cuda:1", 3), ("cuda:0,cuda:0", 0)]
    ]
    assert sharing == [1, 2, 2]


@pytest.mark.slow
def test_a_run_says_where_its_clients_are(gpu, monkeypatch, tmp_path):
    install(monkeypatch)
    shown = []

    def progress(event):
        if isinstance(event, pf.events.Note):
            shown.append(event.text)

    options = {"device": "simgpu", "dry_run": True, "rounds": 1, "progress": progress}
    result = train("fedproto", tmp_path / "run", **options)
    config = json.loads((result.folder / "config.json").read_text())
    assert config["client_store"] == "device"
    (line,) = [note for note in config["notes"] if note.startswith("clients ")]
    assert line.startswith("clients stay on the device: ") and line in shown
    gpu.total, shown[:] = gpu.live + 60_000, []
    result = train("fedproto", tmp_path / "small", **options | {"clients": 24})
    config = json.loads((result.folder / "config.json").read_text())
    assert config["client_store"] == "memory"
    assert any(line.startswith("clients lie in host memory: ") for line in shown)


def test_on_a_cpu_nothing_is_chosen():
    plan = make_plan(Local)
    assert plan.settings.client_store == "memory"
    assert make_plan(Local, client_store="device").settings.client_store == "device"


# --- samples -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_samples_come_to_the_device_once_in_a_run(gpu, monkeypatch, tmp_path):
    """In training, evaluation, of unseen clients, and in the dry run; for server and clients."""
    install(monkeypatch)
    options = {"dry_run": True, "unseen": 0.25, "measure": ["global-accuracy", "train-accuracy"]}
    train("ds-fl", tmp_path / "run", device="simgpu", public=10, **options)
    sizes = [size for way, size in gpu.copies if way == "to device"]
    assert sizes.count(SAMPLES) == 1
    assert sizes.count(96 * 8) == 1  # labels
    largest = max(size for size in sizes if size != SAMPLES)
    assert largest <= max(2048, 96 * 8)  # a layer of a fresh model; 6 samples would be 384


def test_public_data_come_to_the_device_once(gpu):
    plan = on("device")
    public = pf.datasets.Dataset(
        torch.zeros(40, 1, 8, 8, dtype=torch.uint8), torch.zeros(40, dtype=torch.int64), 40, ["a"]
    )
    plan = replace(plan, public_data=public)
    short = for_dry_rounds(plan, 2)
    first = short.public_samples(0, channels_last=False)
    assert len(first) == 6 and first.inputs().device.type == "simgpu"
    assert len(plan.public_samples(0, channels_last=False)) == 40
    sizes = [size for way, size in gpu.copies if way == "to device"]
    assert sizes.count(40 * 64) == sizes.count(6 * 64) == 1  # all, and those of the dry run


@pytest.mark.slow
def test_samples_that_do_not_fit_are_copied_batch_by_batch(gpu, monkeypatch, tmp_path):
    options = {"rounds": 2, "unseen": 0.25, "augment": True, "measure": ["global-accuracy"]}
    expected = without_times(lines_of(make_plan("fedproto", **options)))
    monkeypatch.setattr(
        "protofl.federation.plan.store_choice.room_for_samples", lambda *_: SAMPLES - 1
    )
    gpu.copies.clear()
    assert without_times(lines_of(on("device", "fedproto", **options))) == expected
    sizes = [size for way, size in gpu.copies if way == "to device"]
    assert SAMPLES not in sizes
    assert max(sizes) < SAMPLES
    install(monkeypatch)
    result = train("fedproto", tmp_path / "run", device="simgpu", dry_run=True)
    config = json.loads((result.folder / "config.json").read_text())
    assert any(note.startswith("samples stay in host memory") for note in config["notes"])


# --- memory is flat ------------------------------------------------------------------------------


@pytest.mark.parametrize("store", quick(STORES, "device", "disk"))
@pytest.mark.parametrize("method", quick(["fedproto", Counting], "fedproto"))
def test_memory_is_flat(gpu, store, method):
    federation = open_federation(on(store, method, rounds=5))
    found = []
    for number in range(5):
        gpu.peak = gpu.live
        federation.round(number)
        found.append((gpu.live, gpu.peak))
    assert len({*found[1:]}) == 1, found


@pytest.mark.slow
def test_live_tensors_on_a_cpu_are_as_many_in_each_round():
    federation = open_federation(make_plan("fedproto", rounds=5))
    found = []
    for number in range(5):
        federation.round(number)
        gc.collect()
        kinds = Counter(map(type, gc.get_objects()))
        found.append(sum(count for kind, count in kinds.items() if issubclass(kind, torch.Tensor)))
    assert len({*found[1:]}) == 1, found


def test_a_host_frees_its_memory_at_once(gpu):
    before = gpu.live
    gc.disable()
    try:
        host = pf.backends.Host(on("device"))
        host.handle(StartTrial(0))
        host.handle(Train(0, 0))
        assert gpu.live > before
        del host
        assert gpu.live - before < 2416
    finally:
        gc.enable()


def test_the_dry_run_leaves_samples_alone(gpu):
    plan = on("device", Counting)
    assert plan.stored[0].device.type == "simgpu"
    before = gpu.live
    gc.disable()
    try:
        dry_run(plan)
        assert gpu.live == before
    finally:
        gc.enable()


def test_models_of_one_architecture_wait_for_their_next_clients(gpu, no_room, monkeypatch):
    host = pf.backends.Host(in_groups("memory", models="toy1"))
    host.handle(StartTrial(0))
    [*host.run([Train(client, 0) for client in range(4)])]
    monkeypatch.setattr(pf.backends.Plan, "initial_model", None)  # none is built
    [*host.run([Train(client, 1) for client in range(4)])]


# --- too little memory ---------------------------------------------------------------------------


def notes_of(plan, gpu, room):
    """Train a plan with so much memory; return its rows and its notes."""
    federation = open_federation(plan)
    gc.collect()
    gpu.total = gpu.live + room
    notes = []
    federation._stages._progress = lambda e: notes.append(getattr(e, "text", ""))
    rows = [federation.round(number)[0] for number in range(plan.settings.rounds)]
    return without_times(rows), [note for note in notes if note]


@pytest.fixture
def needy(monkeypatch):
    """The engine of this file needs much memory for each client."""
    monkeypatch.setattr(Groups, "need", 1 << 20)
    monkeypatch.setattr(parked, "free_memory", lambda device: 0)


def test_then_what_to_change_is_named(gpu, needy):
    with pytest.raises(pf.RunFailure) as error:
        notes_of(in_groups("device", 4), gpu, 9000)
    assert "memory of the device ran out (CUDA out of memory" in error.value.what
    for words in ("--batch-size", "--client-store memory", "engine.streams=1", "--precision bf16"):
        assert words in error.value.do
