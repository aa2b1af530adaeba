"""What every installed method promises, whoever wrote it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import protofl as pf
import pytest
import torch
import toyfed
from protofl import host
from protofl.config import VariantConfig
from protofl.drystep import dry_step
from protofl.record import RunFolder
from protofl.registry import Registry

REGISTRY = Registry()
METHODS = [plugin.name for plugin in REGISTRY.plugins("method")]
WITH_NORM = (toyfed.group(toyfed.CNN, toyfed.NORM), toyfed.group(toyfed.NORM))
# Few server epochs, of which a hundred are the default, and options that bring all terms and keys.
QUICK = {"fedtgp": {"S": 5}, "fedet": {"aggregate": "weighted"}, "fedgen": {"b": 1.0}}


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


@pytest.fixture
def fed(method, tmp_path):
    """``fed(**options)``: a federation of the method on a heterogeneous toy, where it takes one."""

    def plan(**options):
        if getattr(REGISTRY.load("method", method), "needs_public", False):
            path = tmp_path / "public.npz"
            generator = np.random.default_rng(0)
            shape = (12, toyfed.SIDE, toyfed.SIDE)
            x = generator.standard_normal(shape).astype(np.float32)
            np.savez(path, x_train=x, y_train=np.arange(12) % 4)
            options.setdefault("public", f"npz:{path}")
        if "models" in options:
            return toyfed.make_plan(method, tmp_path, **options)
        try:
            return toyfed.make_plan(method, tmp_path, models=WITH_NORM[0], **options)
        except pf.UsageError as error:
            assert "architectures" in str(error)
            return toyfed.make_plan(method, tmp_path, models=WITH_NORM[1], **options)

    def make(trial=0, backwards=False, set=None, **options):
        options["options"] = {method: QUICK.get(method, {}) | (set or {})}
        return toyfed.Toy(plan(**options), trial=trial, backwards=backwards)

    return make


def all_finite(lines):
    for line in lines:
        values = [line["train_loss"], *line["loss_terms"].values(), *line["extra"].values()]
        assert all(math.isfinite(v) for v in values), line
        if line["test_accuracy"] is not None:
            assert 0 <= line["test_accuracy"] <= 1
    return True


# --- payloads -----------------------------------------------------------------------------------


def test_payloads_survive_the_wire_and_their_bytes_are_counted(fed):
    found = fed()
    lines = found.rounds(2)
    for number, line in enumerate(lines):
        for direction in ("upload", "download"):
            blobs = getattr(found.pool, f"{direction}s")(number)
            assert len(blobs) == 4
            assert line[f"{direction}_bytes"] == sum(len(b) for b in blobs.values())
            assert line[f"{direction}_floats"] == sum(map(toyfed.count_floats, blobs.values()))
            for blob in blobs.values():
                payload = pf.Payload.from_bytes(blob)
                again = pf.Payload.from_bytes(payload.to_bytes())
                assert toyfed.same(dict(payload), dict(again))
                assert payload.floats == toyfed.count_floats(blob)
                assert payload.nonfinite() is None


def test_what_is_sent_is_what_is_declared(method, fed):
    """Keys under a declared ``PART/…`` are declared; ``classes`` tells whose the rows are."""
    plugin = REGISTRY.load("method", method)
    config = getattr(plugin, "Config", pf.Config)
    variants = ["paper", "official"] if issubclass(config, VariantConfig) else [None]
    sent = {"uploads": set(), "downloads": set()}
    for variant in variants:
        found = fed(set={"variant": variant} if variant else {})
        found.rounds(2)
        for direction, keys in sent.items():
            for number in range(2):
                for blob in getattr(found.pool, direction)(number).values():
                    keys |= {*toyfed.header(blob)}
    for direction, keys in sent.items():
        declared = {*getattr(plugin, direction)}
        parts = {d.removesuffix("…") for d in declared if d.endswith("/…")}
        # The longest declared part first; buffers are declared for models that have any.
        ordered = sorted(parts, key=len, reverse=True)
        names = {next((f"{p}…" for p in ordered if k.startswith(p)), k) for k in keys}
        declared = {d for d in declared if d in names or not d.endswith("/buffer/…")}
        if direction == "downloads":
            rows = {"classes", *(f"{d}.classes" for d in declared)}
            names -= rows - declared
        assert names == declared, direction


def test_clients_with_few_and_lonely_classes(fed):
    """One class on client 0, one that nobody else has on client 2."""
    images = toyfed.make_images([[8, 0, 0, 0], [3, 4, 2, 0], [0, 5, 0, 6], [4, 4, 4, 0]])
    found = fed(images=images)
    assert all_finite(found.rounds(3))
    for number, classes in enumerate([[0], [0, 1, 2], [1, 3], [0, 1, 2]]):
        upload = pf.Payload.from_bytes(found.pool.uploads(2)[number])
        if "prototypes" in upload:
            assert upload.classes_of("prototypes").tolist() == classes


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_last_batch_of_one_sample_and_a_client_of_one(fed, drop_last):
    """BatchNorm refuses a batch of one; 6 and 11 samples in batches of 5 leave one over."""
    images = toyfed.make_images([[3, 3, 0], [4, 4, 3], [1, 0, 0], [2, 2, 2]])
    found = fed(images=images, models=WITH_NORM[1], drop_last=drop_last)
    assert all_finite(found.rounds(2))


def test_a_tenth_of_ten_clients(fed):
    shares = [[3 + i % 3, 2, 2, i % 4] for i in range(10)]
    found = fed(images=toyfed.make_images(shares), participation=0.1)
    lines = found.rounds(4)
    assert all_finite(lines)
    chosen = [{*found.pool.uploads(number)} for number in range(4)]
    assert all(len(c) == 1 for c in chosen)
    assert len(set.union(*chosen)) > 1
    assert all(len(line["clients"]) == 10 for line in lines)  # all are evaluated


# --- equal runs ---------------------------------------------------------------------------------


def test_equal_runs_are_equal_to_the_last_bit(fed):
    runs = [fed(), fed()]
    for found in runs:
        found.rounds(3)
    assert toyfed.same(*map(toyfed.fingerprint, runs))


def test_another_seed_is_another_run(fed):
    runs = [fed(), fed(seed=1)]
    for found in runs:
        found.rounds(1)
    assert not toyfed.same(*map(toyfed.fingerprint, runs))


def test_the_order_of_clients_does_not_matter(fed):
    runs = [fed(), fed(backwards=True)]
    for found in runs:
        found.rounds(3)
    orders = [[job.client for job, _ in found.pool.trained] for found in runs]
    assert orders[0] != orders[1]
    assert toyfed.same(*map(toyfed.fingerprint, runs))


def test_evaluating_less_often_changes_nothing(fed):
    often, seldom = fed(rounds=4), fed(rounds=4, eval_every=2)
    a, b = often.rounds(4), seldom.rounds(4)
    for number, (one, two) in enumerate(zip(a, b, strict=True)):
        if number % 2:
            assert toyfed.same(one, two)
        else:
            assert two["test_accuracy"] is None
            assert (one["train_loss"], one["loss_terms"]) == (two["train_loss"], two["loss_terms"])
    assert toyfed.same(toyfed.fingerprint(often)[1:], toyfed.fingerprint(seldom)[1:])


def test_trial_k_of_seed_s_is_a_run_with_seed_s_plus_k(fed):
    images = toyfed.make_images([[12, 12, 12, 12], [12, 12, 12, 12]], given_split=False)
    options = {"images": images, "participation": 0.5, "partition": "dirichlet"}
    second = fed(trial=2, seed=3, trials=3, **options)
    alone = fed(seed=5, **options)
    for found in (second, alone):
        for line in found.rounds(2):
            line.pop("trial")
    assert toyfed.same(toyfed.fingerprint(second), toyfed.fingerprint(alone))


# --- where clients are kept ---------------------------------------------------------------------


def kept(store, monkeypatch):
    """Options of a run whose clients are kept as on a CPU, on an accelerator, or on disk."""
    if store == "packed":
        monkeypatch.setattr(host, "store_kind", lambda *_, dry, **__: "live" if dry else "packed")
    return {"client_store": "disk" if store == "disk" else "memory", "participation": 0.5}


def own_state(record):
    """What a client is: all but its frozen modules, which set-up and downloads make."""
    modules = {name: slot.module.state_dict() for name, slot in record.slots() if slot.train}
    return record.model.state_dict(), modules, record.state


@pytest.mark.parametrize("store", ["packed", "disk"])
def test_where_clients_are_kept_changes_nothing(fed, monkeypatch, store):
    live = fed(rounds=4, participation=0.5)
    live.rounds(4)
    with monkeypatch.context() as patch:
        found = fed(rounds=4, **kept(store, patch))
    found.rounds(4)
    trained = {job.client for job, _ in found.pool.trained}
    chosen = [{*found.pool.uploads(number)} for number in range(4)]
    assert any(a & b for a, b in itertools.combinations(chosen, 2)), "nobody came back"
    assert not found.pool.host._store._live
    for client in trained:
        assert toyfed.same(*(own_state(run.client(client)) for run in (live, found)))
    lines = [toyfed.fingerprint(run)[:2] for run in (live, found)]
    assert toyfed.same(*lines)


@pytest.mark.parametrize(("first", "then"), [("disk", "packed"), ("live", "disk")])
def test_a_run_may_go_on_elsewhere(fed, monkeypatch, tmp_path, first, then):
    """Interrupted behind a commit, and continued from its files with another store."""
    options = {"rounds": 4, "participation": 0.5}
    whole = fed(**options)
    whole.rounds(4)
    with monkeypatch.context() as patch:
        cut = fed(rounds=4, **kept(first, patch))
    folder = RunFolder.create(tmp_path / "run", cut.plan)
    for number in range(2):
        line = cut.rounds(1)[-1]
        clients = sorted(cut.pool.uploads(number))
        paths = folder.client_paths(clients, 0, number)
        cut.federation.save_clients(clients, paths)
        folder.commit_round(cut.federation, number, paths, line)
    cut.rounds(1)  # this one is lost
    with monkeypatch.context() as patch:
        again = fed(rounds=4, **kept(then, patch))
    RunFolder.reopen(tmp_path / "run").restore(again.federation)
    again.lines = cut.lines[:2]
    again.rounds(2)
    assert toyfed.same(*(toyfed.fingerprint(run)[:2] for run in (whole, again)))
    for number in range(4):
        assert toyfed.same(*(own_state(run.client(number)) for run in (whole, again)))


# --- what may not be changed --------------------------------------------------------------------


def test_evaluation_changes_nothing(fed):
    found = fed(participation=0.5, rounds=10, eval_every=10)
    found.rounds(2)  # none of them evaluated: the first evaluation is the one below
    server = found.server.view(found.plan.composition.main)
    everything = torch.get_rng_state()
    for number in range(4):  # two of which have just trained
        record = found.client(number)
        payload = found.call("download_payload", server=server, client_id=number)
        job = pf.Job("evaluate", number, {"round": 7}, payload.to_bytes())
        before = toyfed.client_state(record)
        replies = [found.pool.host.handle(job).values for _ in range(2)]
        assert toyfed.same(before, toyfed.client_state(record))
        assert replies[0]["correct"] == replies[1]["correct"]
    assert torch.equal(everything, torch.get_rng_state())


def test_download_and_inference_write_nothing(fed):
    found = fed()
    for rounds in (0, 2):
        found.rounds(rounds)
        server = found.server.view(found.plan.composition.main)
        before = toyfed.server_state(found.server)
        downloads = [
            dict(found.call("download_payload", server=server, client_id=number))
            for number in (0, 1, 2, 3, 1)
        ]
        assert toyfed.same(downloads[1], downloads[4])
        assert toyfed.same(before, toyfed.server_state(found.server))
        for number in range(4):
            record = found.client(number)
            record.received = pf.Payload(downloads[number])
            found.lifecycle("receive", client=record.view(found.plan.composition.main))
            record.model.eval()
            before_client = toyfed.client_state(record)
            x = record.test.images()
            view = record.view(found.plan.composition.main)
            with torch.no_grad():
                scores = [found.call("inference", client=view, x=x) for _ in range(2)]
            assert scores[0].shape == (len(x), 4)
            assert not scores[0].isnan().any()
            assert torch.equal(*scores)
            assert toyfed.same(before_client, toyfed.client_state(record))


def test_the_plugin_keeps_nothing_on_itself(method, fed):
    found = fed()
    found.rounds(2)
    instance = found.plan.composition.members[method].instance
    assert vars(instance) == {}
    loaded = REGISTRY.load("method", method)
    assert type(instance) is loaded


# --- the loss -----------------------------------------------------------------------------------


def test_terms_are_finite_scalars_with_gradients(method, fed):
    """After a round every declared term is there, and moves the model."""
    found = fed()
    found.rounds(1)
    server = found.server.view(method)
    received = found.call("download_payload", server=server, client_id=0)
    found.client(0).round, found.client(0).steps = 1, 1
    record = found.prepare(0, received, double=False)
    draws = found.lifecycle("before_training", client=record.view(method))
    with torch.no_grad():  # a step away, so that a term at its minimum has a slope too
        for parameter in record.model.parameters():
            parameter += 0.1 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(1)
            )
    x, y = record.train.images(slice(5)), record.train.y[:5]
    record.model.train()
    features = record.model.features(x)
    batch = pf.Batch(x, y, torch.arange(len(y)))
    output = pf.Output(features, record.model.head(features))
    terms = found.plan.composition.loss(record.view, draws)(batch, output, 0)
    declared = found.plan.composition.declared_terms(method)
    if [phase.name for phase in found.plan.composition.phases(found.plan.info)] == ["private"]:
        assert terms.keys() == declared.keys()
    assert terms.keys() <= declared.keys()
    parameters = [p for group, _ in record.parameter_groups(0.1) for p in group]
    for name, term in terms.items():
        assert term.shape == () and term.isfinite(), name
        gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
        reached = [g for g in gradients if g is not None]
        assert reached, name
        assert all(g.isfinite().all() for g in reached), name
        assert any(g.abs().max() > 0 for g in reached), name


def test_the_train_loss_is_the_sum_of_its_terms(fed):
    for line in fed().rounds(2):
        assert line["train_loss"] == pytest.approx(sum(line["loss_terms"].values()))


def test_the_dry_step_passes_and_leaves_no_trace(fed):
    clean, after = fed(), fed()
    clean.rounds(2)
    generator = torch.get_rng_state()
    dry_step(after.plan)
    assert torch.equal(generator, torch.get_rng_state())
    after.rounds(2)
    assert toyfed.same(*map(toyfed.fingerprint, (clean, after)))


# --- declarations -------------------------------------------------------------------------------


def test_it_says_what_it_does(method):
    plugin = REGISTRY.load("method", method)
    assert plugin.__doc__
    for name in ("uploads", "downloads"):
        assert all(isinstance(words, str) and words for words in getattr(plugin, name).values())
    config = getattr(plugin, "Config", pf.Config)
    assert issubclass(config, pf.Config)
    for name, field in config.model_fields.items():
        assert field.description, name
    if issubclass(config, VariantConfig):
        assert {*config.deviations} <= {*config.model_fields}
        for variant in ("paper", "official"):
            filled = config(variant=variant)
            for name, deviation in config.deviations.items():
                assert getattr(filled, name) == getattr(deviation, variant)


def test_training_learns_more_than_chance(fed):
    images = toyfed.make_images([[12, 12, 12, 12]] * 4, [[6, 6, 6, 6]] * 4)
    found = fed(images=images, rounds=8, lr=0.1)
    assert found.rounds(8)[-1]["test_accuracy"] > 0.5  # a guess gets 0.25
