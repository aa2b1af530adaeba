"""Break each rule of the contracts once: its check fails and says what is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.runs.request.program_classes import kind_of
from protofl.testing import (
    BackendContract,
    DatasetContract,
    EngineContract,
    GeneratorContract,
    MethodContract,
    ModelGroupContract,
    PartitionerContract,
    PayloadTransformContract,
    checks_of,
    run_checks,
)
from protofl.testing import toy as toyfed
from protofl.testing.toy_plugins import Prototypes


def failures(contract, plugin, only):
    """Run some checks of a plugin; return {check: why} of those that failed."""
    names = {f"test_{name}" for name in only.split()}
    assert names <= {*checks_of(contract)}
    others = dict.fromkeys({*checks_of(contract)} - names)
    found = run_checks(type("Chosen", (contract,), {"plugin": plugin, **others}))
    assert len(found) == len(names)
    return {f.check: f.why for f in found if f.outcome == "failed"}


# --- methods ------------------------------------------------------------------------------------
# `author_mistakes` tests what the dry run finds. The dry run has two clients, and most of these
# methods are correct with two clients.


class Counting(Prototypes):
    """Keeps a count on the plugin instance."""

    @pf.hookimpl
    def upload_payload(self, client):
        if client.id > 1:
            self.count = getattr(self, "count", 0) + 1
        return client.class_prototypes().select("prototypes")


class OnTheClass(Prototypes):
    """Keeps counts on the plugin class."""

    seen = {}

    @pf.hookimpl
    def upload_payload(self, client):
        if client.id > 1:
            self.seen[client.id] = client.round
        return client.class_prototypes().select("prototypes")


class Leaking(Prototypes):
    """Sends class counts, which it does not declare."""

    @pf.hookimpl
    def upload_payload(self, client):
        found = client.class_prototypes()
        return found if client.id > 1 else found.select("prototypes")


class Global(Prototypes):
    """Draws from torch's global generator."""

    @pf.hookimpl
    def upload_payload(self, client):
        found = client.class_prototypes().select("prototypes")
        if client.id > 1:
            found["prototypes"] += torch.rand(())
        return found


class InOrder(Prototypes):
    """Sends values that depend on the previous client."""

    turn = [0.0]

    @pf.hookimpl
    def upload_payload(self, client):
        found = client.class_prototypes().select("prototypes")
        if client.id > 1:
            found["prototypes"] += self.turn[0]
            self.turn[0] = float(client.id)
        return found


class Flat(Prototypes):
    """Has a loss term whose gradient is zero."""

    @pf.hookimpl
    def local_loss(self, client, batch, output):
        ce = cross_entropy(output.logits, batch.y)
        return {"ce": ce, "align": 0 * ce}


class Infinite(Prototypes):
    """Sends NaN for a class that no client has."""

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        P, present = pf.stack_rows(uploads, "prototypes", server.num_classes)
        count = present.sum(0).clamp(min=len(uploads) == 2)
        mean = P.sum(0) / count.unsqueeze(1)
        return {"prototypes": mean, "classes": torch.arange(server.num_classes)}


class Remembering(Prototypes):
    """Writes to the client's state during inference."""

    @pf.hookimpl
    def inference(self, client, x):
        if client.id > 1:
            client.state["seen"] = client.state.get("seen", 0) + len(x)
        return client.head(client.features(x))


class Narrow(Prototypes):
    """Returns scores of too few classes."""

    @pf.hookimpl
    def inference(self, client, x):
        return client.head(client.features(x))[:, : 4 if client.id < 2 else 2]


class Alone(Prototypes):
    """Fails if only one client takes part."""

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        assert len(uploads) > 1, "one client is not enough"
        return Prototypes.server_aggregate(self, server, uploads)


class Untold(Prototypes):
    """Has an option without a description."""

    class Config(pf.Config):
        x: int = 3


class Misspelt(Prototypes):
    """Has a hook with a misspelt name."""

    def upload_paylod(self, client):
        return pf.Payload()


class Contrary(Prototypes):
    """Maximises the cross-entropy."""

    terms = {"ce": "cross-entropy, upside down"}

    @pf.hookimpl
    def local_loss(self, client, batch, output):
        return {"ce": -cross_entropy(output.logits, batch.y).clamp(max=5)}


class Odd(Prototypes):
    """Doubles its loss if an engine calls it for several clients at once."""

    @pf.hookimpl
    def local_loss(self, client, batch, output):
        mapped = torch._C._functorch.is_batchedtensor(output.features)
        scale = 2.0 if mapped else 1.0
        return {"ce": scale * cross_entropy(output.logits, batch.y)}


@pytest.mark.parametrize(
    ("plugin", "check", "why"),
    [
        (Counting, "it_keeps_nothing_on_itself", "self holds count"),
        (OnTheClass, "it_keeps_nothing_on_itself", "class attribute seen"),
        (Leaking, "nothing_undeclared_leaves_a_client", "client 2 sent 'counts'"),
        (Global, "equal_runs_are_equal", "two runs of seed 0 differ"),
        (InOrder, "the_order_of_clients_does_not_matter", "the order of clients shows"),
        (Flat, "terms_are_scalars_with_gradients", "term align: its gradient is zero"),
        (Infinite, "few_and_lonely_classes", "NaN"),
        (Remembering, "download_and_inference_write_nothing", "inference writes"),
        (Narrow, "download_and_inference_write_nothing", "inference returned"),
        (Alone, "a_tenth_of_ten_clients", "one client is not enough"),
        (Untold, "words", "option x has no description"),
        (Misspelt, "name_and_hooks", "did you mean upload_payload?"),
        (Contrary, "it_learns", "guessing one of four classes has 0.25"),
        (Odd, "every_engine_equals_eager", "vmapped: "),
    ],
)
def test_a_method(plugin, check, why):
    assert why in failures(MethodContract, plugin, check)[check]


class Numbers(Prototypes):
    """Makes a number of a tensor, which engines that replay steps cannot follow."""

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def local_loss(self, client, batch, output):
        scale = 2.0 if output.logits.max().item() > 1e9 else 1.0
        return {"ce": scale * cross_entropy(output.logits, batch.y)}


def test_an_engine_that_trains_nothing_itself_is_not_passed():
    names = dict.fromkeys({*checks_of(MethodContract)} - {"test_every_engine_equals_eager"})
    chosen = type("Chosen", (MethodContract,), {"plugin": Numbers, **names})
    (found,) = run_checks(chosen)
    assert found.outcome == "skipped" and "cnn is trained by eager" in found.why


class Dividing(Prototypes):
    """Fails with more than two clients."""

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        share = 1 / max(0, 3 - len(uploads))
        return {**Prototypes.server_aggregate(self, server, uploads), "share": torch.tensor(share)}


class OneList(Prototypes):
    """Sends a list."""

    @pf.hookimpl
    def upload_payload(self, client):
        return [*client.class_prototypes().values()]


@pytest.mark.parametrize(
    ("plugin", "check", "why"),
    [
        (OneList, "the_dry_run", "upload_payload returned a list of 3"),
        (
            Dividing,
            "nothing_undeclared_leaves_a_client",
            "server_aggregate, round 1: ZeroDivisionError",
        ),
    ],
)
def test_one_cause_fails_one_check(plugin, check, why):
    found = run_checks(type("Chosen", (MethodContract,), {"plugin": plugin}))
    failed = [finding for finding in found if finding.outcome == "failed"]
    assert [finding.check for finding in failed] == [check]
    assert why in failed[0].why
    pointing = [finding for finding in found if finding.outcome == "not reached"]
    assert len(pointing) > 10
    assert all(finding.why.endswith(failed[0].words) for finding in pointing)
    assert {"name_and_hooks", "words"} <= {f.check for f in found if f.outcome == "passed"}


class Dictionaries(Prototypes):
    """Returns downloads as plain dictionaries."""

    @pf.hookimpl
    def download_payload(self, server):
        return dict(server.global_state)


def test_a_download_may_be_a_dictionary():
    """Three checks call download_payload directly; they used to fail with an AttributeError."""
    only = "evaluation_changes_nothing download_and_inference_write_nothing "
    assert failures(MethodContract, Dictionaries, only + "terms_are_scalars_with_gradients") == {}


class Public:
    """Trains on public data without declaring that it needs them."""

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def phases(self):
        return [pf.Phase("private"), pf.Phase("public", "public")]

    @pf.hookimpl
    def local_loss(self, batch, output):
        return {"ce": cross_entropy(output.logits, output.logits.argmax(1))}


def test_a_method_is_told_how_to_get_public_data():
    why = failures(MethodContract, Public, "the_dry_run")["the_dry_run"]
    assert "needs_public = True" in why
    assert (
        failures(MethodContract, type("Fixed", (Public,), {"needs_public": True}), "the_dry_run")
        == {}
    )


def test_a_good_method():
    assert not failures(
        MethodContract,
        Prototypes,
        "name_and_hooks words declarations few_and_lonely_classes a_last_batch_of_one it_learns",
    )


# --- model groups -------------------------------------------------------------------------------


def _group(build):
    class Group:
        """One net."""

        feature_dim, min_side, channels = 8, 6, None

        @pf.hookimpl
        def architectures(self, config):
            return [pf.models.Architecture("net", build, False)]

    return Group


class _Idle(nn.Linear):
    """A layer with a parameter that nothing uses."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.idle = nn.Parameter(torch.zeros(3))


def _idle(sample, num_classes, feature_dim):
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample.shape), feature_dim))
    return pf.models.SplitModel(extractor, _Idle(feature_dim, num_classes), feature_dim)


def _ten(sample, num_classes, feature_dim):
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample.shape), feature_dim))
    return pf.models.SplitModel(extractor, nn.Linear(feature_dim, 10), feature_dim)


def _fixed(sample, num_classes, feature_dim):
    torch.manual_seed(3)
    return toyfed.CNN.build(sample, num_classes, feature_dim)


def _grey(sample, num_classes, feature_dim):
    grey = pf.datasets.SampleSpec((1, *sample.shape[1:]))
    return toyfed.CNN.build(grey, num_classes, feature_dim)


class _Across(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def _across(sample, num_classes, feature_dim):
    layers = [nn.Flatten(), _Across(), nn.Linear(math.prod(sample.shape), feature_dim)]
    return pf.models.SplitModel(
        nn.Sequential(*layers), nn.Linear(feature_dim, num_classes), feature_dim
    )


@pytest.mark.parametrize(
    ("build", "check", "why"),
    [
        (_idle, "gradients", "no gradient reaches head.idle"),
        (_ten, "feature_width_and_scores", "scores (2, 10)"),
        (_grey, "feature_width_and_scores", "channels"),
        (_fixed, "initial_weights", "two seeds give the same weights"),
        (_across, "samples_are_scored_alone", "alone and in a batch"),
    ],
)
def test_a_model_group(build, check, why):
    assert why in failures(ModelGroupContract, _group(build), check)[check]


# --- partitioners -------------------------------------------------------------------------------


def _partitioner(function):
    class Splits:
        """A partitioner."""

        @pf.hookimpl
        def partition(self, labels, num_clients, generator):
            return function(labels, num_clients, generator)

    return Splits


def _overlapping(labels, M, generator):
    return [np.arange(len(labels))] * M


def _losing(labels, M, generator):
    return np.array_split(generator.permutation(len(labels))[: len(labels) * 9 // 10], M)


def _lists(labels, M, generator):
    return [[0]] * M


def _global_draw(labels, M, generator):
    return np.array_split(np.random.permutation(len(labels)), M)


def _sorting(labels, M, generator):
    labels.sort()
    return np.array_split(np.arange(len(labels)), M)


@pytest.mark.parametrize(
    ("function", "check", "why"),
    [
        (_overlapping, "every_sample_at_most_once", "rows are given twice"),
        (_losing, "no_sample_is_lost", "leaves_out"),
        (_lists, "every_sample_at_most_once", "not an array"),
        (_global_draw, "seeds", "equal generators give other splits"),
        (_sorting, "labels_are_only_read", "read-only"),
        (_sorting, "seeds", "every seed gives the same split"),
    ],
)
def test_a_partitioner(function, check, why):
    assert why in failures(PartitionerContract, _partitioner(function), check)[check]


# --- data sets, generators, transforms ------------------------------------------------------------


class Chance:
    """Decodes different images every time."""

    @pf.hookimpl
    def cache_key(self, data_dir):
        return f"chance-{data_dir.name.lower()}"

    @pf.hookimpl
    def decode(self):
        return pf.datasets.Dataset(torch.rand(20, 1, 8, 9), torch.arange(20) % 4, 20, [*"abcde"])


def test_a_dataset():
    found = failures(DatasetContract, Chance, "cache_key samples decoding_again")
    assert "depends on the folder" in found["cache_key"]
    assert "no sample of class e" in found["samples"]
    assert "a second decoding differs" in found["decoding_again"]


class Loud:
    """Makes images out of range with a network that is not frozen."""

    class Opened(nn.Linear):
        def __init__(self):
            super().__init__(4, 3 * 8 * 8)
            self.outline = pf.datasets.Outline(4, 16, 3, 0)

        def sample_latents(self, count, generator, labels=None):
            return torch.randn(count, 4)

        def images(self, latents):
            return 100 * self(latents).reshape(-1, 3, 8, 8)

    @pf.hookimpl
    def outline(self):
        return pf.datasets.Outline(5, 16, 3, 0)

    @pf.hookimpl
    def open_generator(self):
        return Loud.Opened()


def test_a_generator():
    found = failures(GeneratorContract, Loud, "outline latents images it_is_frozen")
    assert "latent_dim: 5 told, 4 opened" in found["outline"]
    assert "equal generators give other latents" in found["latents"]
    assert "not (3, 3, 16, 16)" in found["images"]
    assert "train mode" in found["it_is_frozen"]


class InPlace:
    """Changes the payload in place."""

    @pf.hookimpl(wrapper=True)
    def download_payload(self, server):
        payload = yield
        for tensor in payload.values():
            tensor += tensor.is_floating_point()
        return payload

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client):
        payload = yield
        assert payload, "it is empty"
        return payload


class NoWrapper:
    """Replaces the hook that it should wrap."""

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload()


def test_a_transform():
    found = failures(
        PayloadTransformContract, InPlace, "the_sender_keeps_what_it_has an_empty_payload"
    )
    assert "a download writes" in found["the_sender_keeps_what_it_has"]
    assert "it is empty" in found["an_empty_payload"]
    found = failures(PayloadTransformContract, NoWrapper, "its_hooks_are_wrappers")
    assert "upload_payload is not a wrapper" in found["its_hooks_are_wrappers"]


class Refuses:
    """Refuses weights on purpose, and BatchNorm."""

    @pf.hookimpl
    def requires(self, run):
        kinds = [architecture.name for architecture in run.architectures]
        return ["it needs nets without BatchNorm"] if "norm" in kinds else []

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client):
        payload = yield
        if "prototypes" in payload:
            raise pf.UsageError("refuses: no prototypes", do="send weights")
        return pf.Payload({key: 2 * value for key, value in payload.items()})


class Fails(Refuses):
    """Fails where it should refuse."""

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client):
        payload = yield
        return payload.select("prototypes", "weights")["weights"]


@pytest.mark.slow
def test_a_transform_may_refuse_on_purpose():
    """What it refuses is left out, and what fails is not a refusal."""
    contract = type("Chosen", (PayloadTransformContract,), {"plugin": Refuses})
    found = {each.check: each for each in run_checks(contract)}
    assert {each.outcome for each in found.values()} == {"passed", "skipped"}
    assert found["what_it_sends"].why == "refused on purpose: prototypes"
    assert "no prototypes" in found["the_dry_run"].why
    assert "needs nets without BatchNorm" in found["the_dry_run"].why
    assert failures(PayloadTransformContract, Fails, "the_dry_run")


class Careless:
    """Encodes every tensor as float16 and decodes every tensor as float32."""

    @pf.hookimpl
    def encode_upload(self, client, payload):
        return pf.Payload({name: tensor.half() for name, tensor in payload.items()})

    @pf.hookimpl
    def decode_upload(self, payload, form):
        return pf.Payload({name: tensor.float() for name, tensor in payload.items()})


class Restless:
    """Encodes the same download differently each time."""

    @pf.hookimpl
    def encode_download(self, server, payload):
        server.state["sent"] = server.state.get("sent", 0) + 1
        sent = {k: v + server.state["sent"] for k, v in payload.items() if v.is_floating_point()}
        return pf.Payload(payload, **sent)

    @pf.hookimpl
    def decode_download(self, client, payload):
        return payload


class Drifting:
    """Decodes the same upload differently each time, and keeps an object in the state."""

    @pf.hookimpl
    def encode_upload(self, client, payload):
        client.state["sent"] = object()
        return payload

    @pf.hookimpl
    def decode_upload(self, server, payload):
        server.state["seen"] = server.state.get("seen", 0) + 1
        seen = {k: v + server.state["seen"] for k, v in payload.items() if v.is_floating_point()}
        return pf.Payload(payload, **seen)


def test_a_transform_that_encodes():
    found = failures(PayloadTransformContract, Careless, "what_is_decoded")
    assert "decode_upload of careless restores in another form" in found["what_is_decoded"]
    name = "a_download_is_encoded_any_number_of_times"
    assert "encode_download is another" in failures(PayloadTransformContract, Restless, name)[name]
    names = "the_same_is_decoded_again its_state_can_be_kept"
    found = failures(PayloadTransformContract, Drifting, names)
    assert "decode_upload gives another" in found["the_same_is_decoded_again"]
    assert "which a checkpoint cannot hold" in found["its_state_can_be_kept"]


def test_a_class_that_encodes_is_known_as_a_transform():
    assert [kind_of(plugin) for plugin in (Careless, Drifting)] == [
        "payload-transform",
        "payload-transform",
    ]


# --- engines and backends -----------------------------------------------------------------------


class Plain:
    """Ignores momentum and the client's random stream."""

    @pf.hookimpl
    def train(self, job):
        sums = {}
        for step, batch in enumerate(job.batches()):
            features = job.model.features(batch.x)
            terms = job.loss(batch, pf.Output(features, job.model.head(features)), step)
            for parameters, lr in job.groups:
                total = sum(terms.values())
                slopes = torch.autograd.grad(
                    total, parameters, retain_graph=True, allow_unused=True
                )
                with torch.no_grad():
                    for parameter, slope in zip(parameters, slopes, strict=True):
                        parameter -= 0 if slope is None else lr * slope
            for label, term in terms.items():
                sums[label] = sums.get(label, 0.0) + term.item() * len(batch.x)
        return sums


def test_an_engine():
    found = failures(EngineContract, Plain, "it_equals_eager several_rounds")
    assert found.keys() == {"it_equals_eager"}
    assert found["it_equals_eager"].startswith("momentum: weights differ by")


class Forgetful:
    """Skips the last job."""

    class Pool:
        def __init__(self, plan):
            self._host = pf.backends.Host(plan)

        def run(self, jobs):
            yield from self._host.run(jobs[:-1])

        def broadcast(self, job):
            self._host.handle(job)

        def close(self):
            del self._host

    @pf.hookimpl
    def open_pool(self, plan):
        return Forgetful.Pool(plan)


def test_a_backend():
    found = failures(BackendContract, Forgetful, "every_job_is_answered_once closing")
    assert "not 0, 1 and 2" in found["every_job_is_answered_once"]
    assert "_host" in found["closing"]


class Everywhere:
    """An attack that also changes the uploads of honest clients."""

    attack = True

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client):
        payload = yield
        return pf.Payload(payload, **{k: -payload[k] for k in payload if k == "prototypes"})


class Yielding:
    """Marks a hook as a transform that cannot be wrapped."""

    @pf.hookimpl(wrapper=True)
    def train_labels(self, client, labels):
        yield


@pytest.mark.parametrize(
    ("plugin", "check", "why"),
    [
        (Everywhere, "the_honest_are_left_alone", "prototypes: client"),
        (Yielding, "its_hooks_are_wrappers", "train_labels is marked as a wrapper"),
    ],
)
def test_an_attack(plugin, check, why):
    assert why in failures(PayloadTransformContract, plugin, check)[check]


def test_classes_of_attacks_are_known_as_transforms():
    assert [kind_of(plugin) for plugin in (Everywhere, Yielding)] == [
        "payload-transform",
        "payload-transform",
    ]


class Empty:
    """A donor method that lacks the hook it donates."""

    donates = ("server_train",)


class Runnable(Prototypes):
    """A donor method that names an unknown hook."""

    donates = ("server_agregate",)


class Shrink:
    """A loss term for other methods."""

    donates = ("local_loss",)
    terms = {"shrink": "mean square of the features"}

    @pf.hookimpl
    def local_loss(self, output):
        return {"shrink": 0.01 * output.features.square().mean()}


@pytest.mark.slow  # multi-krum, a donor too, is among the quick ones of test_contracts.py
def test_a_donor_of_one_loss_term_passes():
    found = run_checks(type("Chosen", (MethodContract,), {"plugin": Shrink}))
    assert {f.check: f.why for f in found if f.outcome not in ("passed", "skipped")} == {}


def test_a_loss_term_that_is_not_declared_as_a_donor_is_told_so():
    class Bare:
        """A method without cross-entropy."""

        terms = Shrink.terms
        local_loss = Shrink.local_loss

    assert 'donates = ("local_loss",)' in failures(MethodContract, Bare, "it_learns")["it_learns"]


@pytest.mark.parametrize(
    ("plugin", "why"),
    [
        (Empty, "it donates server_train and does not have it"),
        (Runnable, "donates names 'server_agregate', which is none of the six hooks"),
    ],
)
def test_a_donor(plugin, why):
    only = "a_donor_is_run_by_others_alone"
    assert why in failures(MethodContract, plugin, only)[only]


@pytest.mark.parametrize("method", ["ffa-lora", "depthfl"])
def test_frozen_parameters_and_nets_with_exits_are_no_fault(method):
    """One freezes parameters of the client's model, the other refuses the usual toy nets."""
    checks = "the_dry_run terms_are_scalars_with_gradients"
    assert failures(MethodContract, method, checks) == {}
