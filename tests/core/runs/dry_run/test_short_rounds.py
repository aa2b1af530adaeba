"""Tests of the dry run: errors it finds before the first round; it leaves no trace."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from runtime_toys import install, make_plan, train, without_times
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.errors import Refused
from protofl.runs.dry_run.short_rounds import dry_run


class Prototypes:
    """Aligns features with prototypes from the server, in the simplest way."""

    terms = {"ce": "cross-entropy", "align": "distance to the received prototypes"}
    uploads = {"prototypes": "means"}
    downloads = {"prototypes": "means of means"}

    @pf.hookimpl
    def download_payload(self, server):
        return server.global_state.select("prototypes")

    @pf.hookimpl
    def before_training(self, client):
        if "prototypes" not in client.received:
            return {}
        return {"prototypes": client.received.table("prototypes", client.num_classes)}

    @pf.hookimpl
    def local_loss(self, client, batch, output, constants):
        terms = {"ce": cross_entropy(output.logits, batch.y)}
        if constants:
            table, known = constants["prototypes"]
            align = pf.functional.prototype_alignment(output.features, batch.y, table, known)
            terms["align"] = 0.1 * align
        return terms

    @pf.hookimpl
    def upload_payload(self, client):
        client.state["rounds"] = client.state.get("rounds", 0) + 1
        return client.class_prototypes().select("prototypes")

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        server.state["rounds"] = server.state.get("rounds", 0) + 1
        P, present = pf.stack_rows(uploads, "prototypes", server.num_classes)
        mean, known = pf.functional.aggregate_prototypes(P, present.long(), "uniform")
        return pf.class_rows(known, prototypes=mean)

    @pf.hookimpl
    def inference(self, client, x):
        features = client.features(x)
        if "prototypes" not in client.received:
            return client.head(features)
        table, _ = client.received.table("prototypes", client.num_classes)
        return -pf.functional.prototype_distance(features, table)


class Strict:
    """Reads a key of the uploads without checking that it exists."""

    uploads = {"counts": "c"}

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        for upload in uploads.values():
            upload["counts"]
        return {}


def failing(*arguments, **options):
    with pytest.raises(pf.UsageError) as caught:
        dry_run(make_plan(*arguments, **options))
    assert caught.value.exit_code == 2
    return caught.value


def test_a_sound_composition_passes():
    for clients in (1, 2, 4):
        dry_run(make_plan(Prototypes, clients=clients, min_clients=clients))


@pytest.mark.parametrize(("shape", "said"), [("[K, K]", 1), ("[K, K] float64", 0)])
def test_a_note_on_float64_that_is_not_declared(shape, said):
    class Precise:
        uploads = {"gram": pf.Key(shape, "second moments")}

        @pf.hookimpl
        def upload_payload(self, client):
            return pf.Payload(gram=torch.eye(client.feature_dim, dtype=torch.float64))

    notes = []
    dry_run(make_plan(Precise), notes.append)
    assert sum("float64, twice the bytes" in note for note in notes) == said


def test_a_term_that_never_comes_into_being():
    # ``local`` downloads nothing, so the added term has no prototypes.
    error = failing("local", {"proto": Prototypes}, add=["proto.align"])
    assert "'proto.align'" in error.what
    assert "'prototypes'" in error.near
    for sender in ("fedproto", "proto", "fedsa"):
        assert sender in error.do
    assert "--add download_payload=METHOD" in error.do
    assert "lg-fedavg" not in error.do
    dropped = {"use": {"local_loss": "proto"}, "drop": ["proto.align"]}
    dry_run(make_plan("local", {"proto": Prototypes}, **dropped))


def test_a_term_that_is_missing_without_a_key():
    class Forgetful:
        terms = {"ce": "cross-entropy", "other": "never there"}

        @pf.hookimpl
        def local_loss(self, client, batch, output):
            return {"ce": cross_entropy(output.logits, batch.y)}

    error = failing(Forgetful)
    assert "'other'" in error.what
    assert "--drop local_loss.other" in error.do


def test_a_key_that_an_upload_lacks():
    error = failing(
        Prototypes,
        {"strict": Strict},
        use={"server_aggregate": "strict", "upload_payload": "local"},
    )
    assert "'counts'" in error.what
    assert "server_aggregate, round 1" in error.what
    assert "fedproto" in error.do
    assert "strict" in error.do
    assert "--add upload_payload=METHOD" in error.do


def test_a_key_that_a_download_lacks():
    class Reader:
        @pf.hookimpl
        def receive(self, client):
            client.received["model/weight"]

    error = failing(Reader)
    assert "'model/weight'" in error.what
    assert "receive, client 0, round 1" in error.what
    assert "fedavg" in error.do
    assert "--add download_payload=METHOD" in error.do


def test_a_key_that_inference_looks_for_in_vain():
    error = failing("local", {"proto": Prototypes}, use={"inference": "proto"})
    assert "'prototypes'" in str(error)
    assert "--add download_payload=METHOD" in error.do


def test_no_term_in_the_first_round():
    plan = make_plan(Prototypes, drop=["ce"])
    with pytest.raises(pf.ProtoflError) as caught:
        dry_run(plan)
    assert "TypeError" not in str(caught.value)


def test_a_hook_that_fails():
    class Broken:
        @pf.hookimpl
        def server_train(self, server, uploads):
            if server.round == 1:
                raise ZeroDivisionError("seven")
            return {}

    error = failing(Broken)
    assert "server_train, round 2: ZeroDivisionError: seven" in error.what


def test_what_it_sees():
    seen = {"clients": set(), "architectures": set(), "epochs": [], "rounds": set(), "sizes": set()}

    class Watching:
        terms = {"ce": "x"}

        @pf.hookimpl
        def before_training(self, client):
            seen["clients"].add(client.id)
            seen["rounds"].add(client.round)
            return {"steps": client.steps, "samples": client.num_samples}

        @pf.hookimpl
        def local_loss(self, client, batch, output, constants):
            seen["sizes"].add((constants["steps"], len(batch.y), constants["samples"]))
            return {"ce": cross_entropy(output.logits, batch.y)}

        @pf.hookimpl
        def server_train(self, server, uploads):
            seen["epochs"].append(len(list(server.epochs(7))))
            seen["architectures"] |= {server.clients[c].architecture for c in uploads}
            return {}

    dry_run(make_plan(Watching, local_epochs=4))
    assert seen == {
        "clients": {0, 1},
        "architectures": {"dense8", "dense5"},
        "epochs": [1, 1],
        "rounds": {0, 1},
        "sizes": {(1, 6, 6)},
    }
    dry_run(make_plan(Watching, clients=1))


@pytest.mark.slow
def test_it_leaves_no_trace(tmp_path, monkeypatch):
    with torch.random.fork_rng():
        torch.manual_seed(4)
        np.random.seed(4)
        random.seed(4)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        threads = torch.get_num_threads()
        dry_run(make_plan(Prototypes))
        assert torch.equal(torch.get_rng_state(), before[0])
        assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]
        assert torch.get_num_threads() == threads
    install(monkeypatch)
    results = [train(Prototypes, tmp_path / str(dry), dry_run=dry) for dry in (True, False)]
    assert without_times(results[0].record) == without_times(results[1].record)
    assert results[0].summary == results[1].summary


def test_a_run_draws_nothing_from_the_global_streams(tmp_path, monkeypatch):
    install(monkeypatch)
    results = []
    for seed in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            state = torch.get_rng_state()
            results.append(train("fedsa", tmp_path / str(seed)))
            assert torch.equal(torch.get_rng_state(), state)
    assert without_times(results[0].record) == without_times(results[1].record)


def test_an_error_of_protofl_in_a_server_hook_ends_the_dry_run(tmp_path):
    """The error was once its own cause, so the search for a missing key did not end."""

    class Refusing:
        """Raises a plain error of protofl on the server."""

        @pf.hookimpl
        def server_aggregate(self, server, uploads):
            raise pf.UsageError("this cannot be aggregated")

    with pytest.raises(pf.UsageError, match="server_aggregate, round 1: this cannot be") as caught:
        pf.run(
            Refusing,
            models="cnn4",
            clients=2,
            rounds=1,
            backend="local",
            out=tmp_path / "run",
            data_dir=tmp_path / "data",
        )
    seen, error = set(), caught.value
    while error is not None:
        assert id(error) not in seen
        seen.add(id(error))
        error = error.__cause__


# --- refusals that name the missing part ----------------------------------------------------------


def lacking(*arguments, **options):
    error = failing(*arguments, **options)
    assert isinstance(error, Refused)
    return error


class Narrow:
    """Sends rows of width 3 and accepts only these."""

    uploads = {"prototypes": "three numbers"}

    @pf.hookimpl
    def upload_payload(self, client):
        every = torch.ones(client.num_classes, dtype=torch.bool)
        return pf.class_rows(every, prototypes=torch.zeros(client.num_classes, 3))

    @pf.hookimpl
    def server_train(self, server, uploads):
        pf.stack_rows(uploads, "prototypes", server.num_classes, 3)
        return {}


def test_rows_of_another_width():
    methods = {"narrow": Narrow, "proto": Prototypes}
    error = lacking("proto", methods, use={"server_train": "narrow"})
    assert (error.lacks, error.name) == ("shape", "prototypes")
    assert "[4, 6]" in error.what and "width 3" in error.what
    assert "server_train of narrow reads it; upload_payload of proto sends" in error.near
    assert error.do.endswith("--use upload_payload=narrow")
    dry_run(make_plan("narrow", methods))


def test_a_download_of_another_width():
    class Reader(Prototypes):
        @pf.hookimpl
        def receive(self, client):
            if "prototypes" in client.received:
                client.received.table("prototypes", client.num_classes, 7)

    error = lacking(Reader)
    assert (error.lacks, error.name) == ("shape", "prototypes")
    assert error.near.startswith("receive of main reads it; download_payload of main sends: ")


def test_a_module_that_nobody_made():
    class Reader:
        @pf.hookimpl
        def before_training(self, client):
            client.module("projection")

    error = lacking(Reader)
    assert (error.lacks, error.name) == ("module", "projection")
    assert "head, model" in error.near and "set-up" in error.do


def test_a_key_that_the_global_state_lacks():
    class Reader:
        @pf.hookimpl
        def download_payload(self, server):
            return {"x": server.global_state["anchors"]}

    error = lacking(Reader)
    assert (error.lacks, error.name) == ("key", "anchors")
    assert "the server's global state has no 'anchors'" in error.what


def test_a_term_of_a_phase_that_the_main_method_lacks():
    # fedmd's digest is trained on public data, in a separate phase.
    for options in ({"add": ["fedmd.digest"]}, {"use": {"local_loss": "fedmd"}}):
        with pytest.raises(Refused) as caught:
            make_plan("local", public=8, **options)
        assert (caught.value.lacks, caught.value.name) == ("phase", "digest")
        assert "'fedmd.digest' belongs to the phase 'digest' of fedmd" in caught.value.what
        assert "--drop local_loss.fedmd.digest" in caught.value.do
    make_plan("local", public=8, use={"local_loss": "fedmd"}, drop=["fedmd.digest"])


def test_a_key_is_told_though_a_later_phase_looks_for_others():
    """The second download of a round, for the phase after the server's step, once hid the first."""
    error = lacking("ds-fl", {"proto": Prototypes}, add=["proto.align"], public=8)
    assert (error.lacks, error.name) == ("key", "prototypes")


def test_a_key_is_told_though_the_download_is_that_of_the_last_round():
    """A client that keeps its download looks for this round's keys in the last round's download."""
    error = lacking("fedpkd", use={"download_payload": "local"}, public=8)
    assert "'prototypes', 'public_logits'" in error.near
    assert (error.lacks, error.name) == ("key", "prototypes")


def test_who_looks_in_vain():
    error = lacking("local", {"proto": Prototypes}, use={"inference": "proto"})
    assert error.what.startswith("inference of proto reads 'prototypes'")
    error = lacking("local", use={"local_loss": "lg-fedavg"})
    assert error.what.startswith("receive of lg-fedavg reads 'head/*'")


def test_another_error_says_what_came():
    class Careless:
        @pf.hookimpl
        def server_train(self, server, uploads):
            return {"x": uploads[0]["prototypes"] @ torch.zeros(7)}

    error = failing("fedproto", {"careless": Careless}, use={"server_train": "careless"})
    assert not isinstance(error, Refused)
    assert (
        "upload_payload of fedproto sends: classes [4], counts [4], prototypes [4, 6]" in error.near
    )


class SeveralDown:
    """Sends two rows of class 0 in the download."""

    terms = {"ce": "cross-entropy"}
    downloads = {"prototypes": "several of a class", "classes": "of which"}
    download_rules = {"classes": "several"}

    @pf.hookimpl
    def setup_server(self, server):
        return pf.Payload(
            prototypes=torch.rand(3, server.feature_dim), classes=torch.tensor([0, 0, 1])
        )

    @pf.hookimpl
    def download_payload(self, server, client_id):
        return server.global_state.select("prototypes")

    @pf.hookimpl
    def local_loss(self, batch, output):
        return {"ce": cross_entropy(output.logits, batch.y)}


class SeveralUndeclared(SeveralDown):
    """The same method without its rule."""

    download_rules = {}


def test_declared_rows_of_a_class_come_down():
    dry_run(make_plan(SeveralDown))


def test_undeclared_rows_of_a_class_are_refused_with_the_rule_to_write():
    error = failing(SeveralUndeclared)
    assert "class 0 twice" in error.what
    assert "download_rules = {'classes': 'several'}" in error.do


# --- hooks and options without an effect ----------------------------------------------------------


def notes_of(method, **options):
    notes: list[str] = []
    dry_run(make_plan(method, **options), notes.append)
    return notes


@pytest.mark.slow
def test_an_aggregation_that_training_replaces_is_named_with_its_options(tmp_path, monkeypatch):
    mix = {"use": {"server_train": "fedtgp"}}
    [note] = notes_of("fedsa", **mix)
    assert note.startswith("server_train of fedtgp replaces 'prototypes' of server_aggregate of")
    assert note.endswith("server_aggregate of fedsa has no effect, nor have its options alpha, ema")
    install(monkeypatch)
    records = []
    for alpha in (0.0, 0.9999):  # the note is true
        own = {"fedsa": {"alpha": alpha}, "fedtgp": {"S": 2}}
        result = train("fedsa", tmp_path / str(alpha), **mix, set=own, rounds=2, dry_run=True)
        records.append(without_times(result.record))
        assert pf.load_run(result.folder).config["notes"] == [note]
    assert records[0] == records[1]


def test_options_that_no_hook_of_a_mix_reads_are_named():
    options = {"fedsa": {"alpha": 0.5, "lambda_2": 0.1}, "fedtgp": {"lambda": 3.0, "tau": 5.0}}
    [of_main, of_donor] = notes_of("fedtgp", use={"local_loss": "fedsa"}, options=options)
    assert of_main == "fedtgp.lambda is set, and no hook of this mix reads it"
    assert of_donor == "fedsa.alpha is set, and no hook of this mix reads it"
    assert not notes_of("fedtgp", use={"local_loss": "fedsa"})


@pytest.mark.parametrize("method", ["fedsa", "fedtgp", "fedproto", "fedgh", "fedorgp", "fedkd"])
def test_a_method_of_its_own_has_no_such_note(method):
    assert not notes_of(method)


class Server:
    """Aggregates and trains on the server; subclasses differ in what training starts from."""

    uploads = {"prototypes": "means"}
    downloads = {"prototypes": "means of means", "spread": "a number"}

    @pf.hookimpl
    def upload_payload(self, client):
        return client.class_prototypes().select("prototypes")

    @pf.hookimpl
    def download_payload(self, server, client_id):
        return server.global_state.select("prototypes")

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        P, present = pf.stack_rows(uploads, "prototypes", server.num_classes)
        mean, known = pf.functional.aggregate_prototypes(P, present.long(), "uniform")
        server.state["mean"] = mean
        return pf.class_rows(known, prototypes=mean)

    @pf.hookimpl
    def server_train(self, server, uploads):
        table, known = self.start(server)
        return pf.class_rows(known, prototypes=table + 1)


class Unread(Server):
    def start(self, server):
        known = torch.ones(server.num_classes, dtype=torch.bool)
        return torch.zeros(server.num_classes, server.feature_dim), known


class FromGlobalState(Server):
    def start(self, server):
        return server.global_state.table("prototypes", server.num_classes)


class FromCopy(Server):
    def start(self, server):
        known = pf.Payload({**server.global_state})
        return known.table("prototypes", server.num_classes)


class Spread(Unread):
    """Reads the aggregated means in a later hook, by its state."""

    @pf.hookimpl
    def end_round(self, server):
        return {"spread": float(server.state["mean"].std())}


@pytest.mark.parametrize(
    ("plugin", "has"),
    [
        (Unread, ["nothing reads it in between: server_aggregate of main has no effect"]),
        (Spread, ["nothing reads it in between"]),
        (FromGlobalState, []),
        (FromCopy, []),
    ],
)
def test_a_result_counts_if_training_or_a_later_hook_reads_it(plugin, has):
    notes = notes_of(plugin)
    assert len(notes) == len(has) and all(n.endswith(h) for n, h in zip(notes, has, strict=True))
