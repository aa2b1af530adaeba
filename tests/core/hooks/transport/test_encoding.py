"""Tests of encoding transforms: order, state, encoded bytes, and errors."""

from __future__ import annotations

import json

import pytest
import torch
from runtime_toys import install, lines_of, make_plan, open_federation, train, without_times

import protofl as pf
from protofl.federation.jobs.jobs import Train
from protofl.federation.round.federation import Federation
from protofl.hooks.transport.encoding import TensorEntry, read_forms, write_forms
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing.toy import WatchedPool, header

CALLS = []


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


class Sender:
    """Uploads 1 and downloads the server's global state; records the values that arrive."""

    uploads = {"x": "one"}
    downloads = {"x": "what came"}

    @pf.hookimpl
    def setup_server(self, server):
        return {"x": torch.tensor([5.0])}

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload(x=torch.ones(1))

    @pf.hookimpl
    def download_payload(self, server):
        return server.global_state.select("x")

    @pf.hookimpl
    def receive(self, client):
        CALLS.append(("received", float(client.received["x"]), client.received["x"].dtype))

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        CALLS.extend(("seen", float(upload["x"])) for upload in uploads.values())
        return {}


def coding(name, there, back):
    """Return a transform that encodes and decodes one number in both directions."""

    def noted(side, function):
        def change(payload):
            CALLS.append((name, side, float(payload["x"])))
            return pf.Payload(payload, x=function(payload["x"]))

        return change

    encode, decode = noted("encode", there), noted("decode", back)

    class Coding:
        @pf.hookimpl
        def encode_upload(self, client, payload):
            return encode(payload)

        @pf.hookimpl
        def decode_upload(self, payload, form):
            return decode(payload)

        @pf.hookimpl
        def encode_download(self, server, payload):
            return encode(payload)

        @pf.hookimpl
        def decode_download(self, client, payload):
            return decode(payload)

    return Coding


Twice = coding("twice", lambda x: 2 * x, lambda x: x / 2)
More = coding("more", lambda x: x + 1, lambda x: x - 1)
ONE = {"clients": 1, "participation": 1.0}


def crossed(plan):
    """Run a round and return {direction: encoded number}."""
    pool = WatchedPool(plan)
    federation = opened(plan, pool)
    federation.round(0)
    return {
        direction: pf.Payload.from_bytes(blobs[0])["x"].item()
        for direction, blobs in (("up", pool.uploads(0)), ("down", pool.downloads(0)))
    }


def opened(plan, pool):
    federation = Federation(plan, pool)
    federation.start_trial(0)
    return federation


# --- order of transforms
# ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "up", "down"), [(("twice", "more"), 3.0, 11.0), (("more", "twice"), 4.0, 12.0)]
)
def test_encoded_in_the_order_given_and_decoded_in_reverse(order, up, down):
    transforms = {name: {"twice": Twice, "more": More}[name] for name in order}
    found = crossed(make_plan(Sender, transforms=transforms, **ONE))
    assert found == {"up": up, "down": down}
    sides = [call[:2] for call in CALLS if len(call) == 3 and call[1] in ("encode", "decode")]
    one, two = order
    assert sides[:4] == [(one, "encode"), (two, "encode"), (two, "decode"), (one, "decode")]
    assert ("seen", 1.0) in CALLS
    assert next(call for call in CALLS if call[0] == "received")[1] == 5.0


def test_what_changes_the_payload_comes_before_all_that_encode():
    class Plus:
        @pf.hookimpl(wrapper=True)
        def upload_payload(self, client):
            payload = yield
            return pf.Payload(x=payload["x"] + 10)

    for transforms in ({"twice": Twice, "plus": Plus}, {"plus": Plus, "twice": Twice}):
        CALLS.clear()
        assert crossed(make_plan(Sender, transforms=transforms, **ONE))["up"] == 22.0
        assert ("seen", 11.0) in CALLS


def test_evaluation_sees_what_is_decoded():
    class Rounding:
        @pf.hookimpl
        def encode_download(self, server, payload):
            return pf.Payload(x=payload["x"].half() + 1)

        @pf.hookimpl
        def decode_download(self, client, payload, form):
            assert form["x"].device.type == "meta" and form["x"].dtype == torch.float32
            return pf.Payload(x=payload["x"].to(form["x"].dtype))

    open_federation(make_plan(Sender, transforms={"rounding": Rounding}, **ONE)).round(0)
    assert [call[1:] for call in CALLS if call[0] == "received"] == [(6.0, torch.float32)] * 2


def test_hooks_see_the_transforms_own_view():
    seen = []

    class Viewing:
        class Config(pf.Config):
            by: int = pf.Field(1, description="b")

        @pf.hookimpl
        def encode_upload(self, client, payload):
            seen.append((client.config.by, client.id, client.round))
            client.state["sent"] = client.state.get("sent", 0) + 1
            draw = torch.rand(1, generator=client.generator("a"))
            return pf.Payload(payload, x=payload["x"] + 0 * draw)

        @pf.hookimpl
        def decode_upload(self, server, client_id, payload, form):
            seen.append((server.config.by, client_id, server.round))
            return payload

    plan = make_plan(Sender, transforms={"viewing": Viewing}, options={"viewing": {"by": 3}}, **ONE)
    federation = open_federation(plan)
    for number in range(2):
        federation.round(number)
    assert seen == [(3, 0, 0), (3, 0, 0), (3, 0, 1), (3, 0, 1)]
    assert federation.pool.client(0).state["viewing"] == {"sent": 2}


# --- encoded bytes, and number of calls -----------------------------------------------------------


def test_what_crosses_is_counted():
    plan = make_plan("fedproto", transforms={"top-k": None, "quantise": None}, feature_dim=64)
    pool = WatchedPool(plan)
    federation = opened(plan, pool)
    for number in range(2):
        line, _ = federation.round(number)
        for direction, blobs in (
            ("upload", pool.uploads(number)),
            ("download", pool.downloads(number)),
        ):
            assert line[f"{direction}_bytes"] == sum(len(blob) for blob in blobs.values())
    # Top-k leaves 6 of 64 numbers and their indices; 8 bits add one scale a row, the only floats.
    blob = pool.uploads(1)[0]
    found, rows = header(blob), 4
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in found.items()} == {
        "prototypes": ("I8", [rows, 6]),
        "prototypes.scale": ("F32", [rows]),
        "prototypes.indices": ("U8", [rows, 6]),
        "classes": ("I64", [rows]),
        "counts": ("I64", [rows]),
    }
    assert line["upload_floats"] == 4 * rows


@pytest.mark.parametrize("each", [False, True])
def test_a_download_is_encoded_once_for_all_unless_the_client_counts(each):
    calls = []

    def encoded(payload):
        calls.append(1)
        return payload

    class Shared:
        @pf.hookimpl
        def encode_download(self, server, payload):
            return encoded(payload)

        @pf.hookimpl
        def decode_download(self, payload):
            return payload

    class Each(Shared):
        @pf.hookimpl
        def encode_download(self, server, client_id, payload):
            return encoded(payload)

    class Same(Sender):
        @pf.hookimpl
        def download_payload(self, server):
            return pf.Payload(server.global_state)

    plan = make_plan(Same, transforms={"payload-transform": Each if each else Shared})
    open_federation(plan).round(0)
    assert len(calls) == (8 if each else 2)  # training and evaluation of four clients


def test_an_empty_payload_is_encoded_by_nobody():
    plan = make_plan("local", transforms={"twice": Twice, "quantise": None})
    line = lines_of(plan, 1)[0]
    assert line["upload_bytes"] == line["download_bytes"] == 0 and CALLS == []


def test_without_encodings_the_bytes_are_plain():
    class Plus:
        @pf.hookimpl(wrapper=True)
        def upload_payload(self, client):
            return (yield)

    pool = WatchedPool(make_plan("fedproto", transforms={"plus": Plus}))
    opened(pool.host.plan, pool).round(0)
    blob = pool.uploads(0)[0]
    assert blob == pf.Payload.from_bytes(blob).to_bytes() and b"__metadata__" not in blob


# --- state at the sender --------------------------------------------------------------------------

MEMORY = {
    "with": ["top-k", "quantise"],
    "set": ["top-k.error_feedback=true", "top-k.count=2", "quantise.stochastic=true"],
    "rounds": 4,
    "participation": 0.5,
    "trials": 2,
}


def stored(folder):
    return {p.name: p.read_bytes() for p in (folder / "checkpoint").glob("*.safetensors")}


@pytest.mark.always
@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_memory_survives_resume(tmp_path, monkeypatch, store):
    install(monkeypatch)
    straight = train("fedproto", tmp_path / "one", client_store=store, **MEMORY)

    class Stop(Exception):
        pass

    def stop(event):
        if isinstance(event, pf.events.RoundDone) and event.row["round"] == 2:
            raise Stop

    with pytest.raises(Stop):
        train("fedproto", tmp_path / "two", client_store=store, progress=stop, **MEMORY)
    resumed = train(None, tmp_path / "two", resume=True)
    assert without_times(resumed.record) == without_times(straight.record)
    assert stored(tmp_path / "two") == stored(tmp_path / "one")
    assert any(b"top-k" in data for data in stored(tmp_path / "one").values())


@pytest.mark.slow
def test_memory_moves_with_its_client(tmp_path):
    """Clients that move between two workers in each round equal clients in one process."""
    options = {**MEMORY, "models": "cnn4", "dataset": "digits", "subset": 200, "clients": 4}
    here, there = (
        pf.run("fedproto", out=tmp_path / backend, backend=backend, workers=2, **options)
        for backend in ("local", "process")
    )
    assert without_times(here.record) == without_times(there.record)
    assert stored(tmp_path / "local") == stored(tmp_path / "process")


def diverging(rounds):
    """Return a method whose client 1 uploads NaN in some rounds."""

    class Diverging(Sender):
        terms = {"ce": "cross-entropy"}

        @pf.hookimpl
        def upload_payload(self, client):
            bad = client.id == 1 and client.round in rounds
            draw = torch.rand(64, generator=client.generator("x"))
            return pf.Payload(x=draw / 0 if bad else draw)

        @pf.hookimpl
        def setup_server(self, server):
            return {}

        @pf.hookimpl
        def receive(self, client):
            pass

        @pf.hookimpl
        def server_aggregate(self, server, uploads):
            return {"x": torch.stack([upload["x"] for upload in uploads.values()]).mean(0)}

    return Diverging


def test_memory_of_a_round_that_does_not_count_is_undone():
    """A skipped client's next upload is the same as if the client had not been sampled."""
    transforms = {"top-k": None}
    common = {"options": {"top-k": {"error_feedback": True}}, "rounds": 4}
    found = open_federation(
        make_plan(diverging((1,)), transforms=transforms, on_bad_upload="skip", **common)
    )
    lines = [found.round(number)[0] for number in range(4)]
    assert [line.get("skipped_uploads") for line in lines] == [None, [1], None, None]
    plan = make_plan(diverging(()), transforms=transforms, **common)
    other = open_federation(plan)
    other._rounds.participants = lambda number: [0, 2, 3] if number == 1 else [0, 1, 2, 3]
    again = [other.round(number)[0] for number in range(4)]
    for one, two in zip(lines, again, strict=True):
        assert one["upload_bytes"] == two["upload_bytes"]
    kept, never = (f.pool.client(1).state["top-k"]["x"]["left"] for f in (found, other))
    assert torch.equal(kept, never) and kept.abs().sum() > 0
    assert torch.equal(found.server.global_state["x"], other.server.global_state["x"])


# --- errors ---------------------------------------------------------------------------------------


def test_one_side_alone():
    class Half:
        @pf.hookimpl
        def encode_upload(self, client, payload):
            return payload

    with pytest.raises(pf.UsageError, match="'half' lacks decode_upload"):
        make_plan(Sender, transforms={"half": Half})
    Other = type("Other", (), {"decode_download": pf.hookimpl(lambda self, payload: payload)})
    with pytest.raises(pf.UsageError, match="lacks encode_download"):
        make_plan(Sender, transforms={"other": Other})


def test_an_encoding_is_no_pluggy_wrapper():
    class Marked(Twice):
        @pf.hookimpl(wrapper=True)
        def encode_upload(self, client, payload):
            return (yield)

    with pytest.raises(pf.UsageError, match="encode_upload is marked as a wrapper"):
        make_plan(Sender, transforms={"marked": Marked})


def failing(encode=None, decode=None, **declared):
    """Return the dry run's error for a transform."""

    class Failing:
        encodes = declared

        @pf.hookimpl
        def encode_upload(self, client, payload):
            return (encode or (lambda p: p))(payload)

        @pf.hookimpl
        def decode_upload(self, payload, form):
            return (decode or (lambda p: p))(payload)

    with pytest.raises(pf.UsageError) as caught:
        dry_run(make_plan(Sender, transforms={"failing": Failing}))
    return str(caught.value)


def test_what_is_not_declared():
    words = failing(lambda p: pf.Payload(p, **{"x.mask": torch.ones(1)}))
    assert "encode_upload of failing: it made 'x.mask', which it does not declare" in words
    assert "encodes = {'mask': 'what it is'}" in words
    words = failing(lambda p: pf.Payload(p, key=torch.ones(1)))
    assert "it made 'key'" in words


def test_nothing_of_something():
    assert "the encoded payload is empty" in failing(lambda p: pf.Payload())


def test_an_encode_that_fails():
    words = failing(lambda p: p["y"])
    assert "encode_upload of failing: the payload has no 'y'" in words
    assert "client 0, round 1" in words


def test_a_decode_that_fails():
    words = failing(decode=lambda p: p["y"])
    assert "what decode_upload of failing cannot read" in words and "has no 'y'" in words
    words = failing(decode=lambda p: 1 // 0)
    assert "ZeroDivisionError" in words


@pytest.mark.parametrize(
    "wrong",
    [
        lambda p: pf.Payload(),
        lambda p: pf.Payload(x=p["x"].double()),
        lambda p: pf.Payload(x=p["x"].repeat(2)),
        lambda p: pf.Payload(p, y=p["x"]),
    ],
)
def test_a_decode_that_makes_another_thing(wrong):
    words = failing(decode=wrong)
    assert "that decode_upload of failing restores in another form" in words


def test_a_type_that_no_form_has():
    class Complex(Sender):
        @pf.hookimpl
        def upload_payload(self, client):
            return pf.Payload(x=torch.ones(1, dtype=torch.complex64))

    with pytest.raises(pf.UsageError, match=r"'x' is of type torch\.complex64"):
        dry_run(make_plan(Complex, transforms={"twice": Twice}))


def test_downloads_are_checked_before_a_hook_sees_them():
    class Odd:
        @pf.hookimpl
        def encode_download(self, server, payload):
            return payload

        @pf.hookimpl
        def decode_download(self, client, payload):
            return pf.Payload(x=payload["x"] / 0)

    with pytest.raises(pf.RunFailure, match="'x' with NaN or infinity"):
        lines_of(make_plan(Sender, transforms={"odd": Odd}))


def test_a_key_that_is_looked_for_in_vain_is_still_named():
    """The dry run records missing keys in decoded downloads."""
    with pytest.raises(pf.UsageError) as caught:
        dry_run(make_plan("fml", transforms={"quantise": None}, add=["fedproto.align"]))
    assert "looked in the download for: 'prototypes'" in str(caught.value)


# --- forms as text --------------------------------------------------------------------------------


def test_forms_come_back():
    first = {"x": TensorEntry("F32", (3, 4)), "y": TensorEntry("I64", ())}
    second = {
        "x": TensorEntry("I8", (3, 4)),
        "x.scale": TensorEntry("F32", (3,)),
        "y": TensorEntry("I64", ()),
    }
    for forms in ([first], [first, second], [first, first, second, second]):
        text = write_forms(forms)
        assert read_forms(text, len(forms) - 1, forms[-1]) == forms
    assert json.loads(write_forms([first, first, second])) == [
        None,
        {"x": ["F32", 3, 4], "y": ["I64"]},
    ]


def test_jobs_carry_what_is_encoded():
    """Transport does not read encoded data: a job is plain values and one blob."""
    plan = make_plan("fedproto", transforms={"quantise": None})
    pool = WatchedPool(plan)
    opened(plan, pool).round(0)
    job, reply = pool.trained[0]
    assert isinstance(job, Train) and type(reply).from_header(reply.header(), reply.blob) == reply


def test_what_was_sent_is_told_by_its_form():
    """Errors of the dry run show the method's upload, not the encoded one."""
    for transforms in ({}, {"top-k": None, "quantise": None}):
        plan = make_plan("feddistill", transforms=transforms, use={"server_aggregate": "fedproto"})
        with pytest.raises(pf.UsageError) as caught:
            dry_run(plan)
        assert "upload_payload of feddistill sends: " in caught.value.near
        assert "class_logits [4, 4]" in caught.value.near and "indices" not in caught.value.near


# --- errors in the dry run -----------------------------------------------------------------------


def counted(view):
    """Count calls in the view's state, which this hook must not change."""
    view.state["n"] = view.state.get("n", 0) + 1


class Through:
    """An encoding without effect; ``also`` is {hook: function with a side effect}."""

    also = {}

    def done(self, hook, view, payload):
        self.also.get(hook, lambda self, view, payload: None)(self, view, payload)
        return payload

    @pf.hookimpl
    def encode_upload(self, client, payload):
        return self.done("encode_upload", client, payload)

    @pf.hookimpl
    def decode_upload(self, server, payload):
        return self.done("decode_upload", server, payload)

    @pf.hookimpl
    def encode_download(self, server, payload):
        return self.done("encode_download", server, payload)

    @pf.hookimpl
    def decode_download(self, client, payload):
        return self.done("decode_download", client, payload)


@pytest.mark.parametrize(
    ("hook", "does", "words"),
    [
        ("encode_upload", lambda self, view, sent: setattr(self, "last", 1), "writes self.last"),
        ("encode_upload", lambda self, view, sent: sent["x"].add_(1), "writes payload['x']"),
        ("encode_upload", lambda self, view, sent: torch.rand(1), "draws from torch's global"),
        ("decode_upload", lambda self, view, sent: counted(view), "writes server.state['n']"),
        ("decode_upload", lambda self, view, sent: setattr(self, "last", 1), "writes self.last"),
        ("encode_download", lambda self, view, sent: counted(view), "writes server.state['n']"),
        ("encode_download", lambda self, view, sent: sent["x"].add_(1), "writes payload['x']"),
        ("decode_download", lambda self, view, sent: counted(view), "writes client.state['n']"),
    ],
)
def test_what_a_side_may_not_do_ends_the_dry_run(hook, does, words):
    wrap = type("Wrap", (Through,), {"also": {hook: does}})
    with pytest.raises(pf.UsageError) as told:
        dry_run(make_plan(Sender, transforms={"wrap": wrap}, **ONE))
    assert f"wrap.{hook} {words}" in told.value.what
    assert told.value.near and told.value.do


def test_a_side_that_does_nothing_of_that_passes():
    def remembers(self, client, payload):
        client.state["kept"] = payload["x"].clone()

    wrap = type("Wrap", (Through,), {"also": {"encode_upload": remembers}})
    dry_run(make_plan(Sender, transforms={"wrap": wrap}, **ONE))


def test_labels_are_the_runs_data_and_not_written_into():
    class Flips:
        @pf.hookimpl
        def train_labels(self, client, labels):
            return labels.fill_(0)

    with pytest.raises(pf.UsageError, match=r"wrap\.train_labels writes labels"):
        dry_run(make_plan(Sender, transforms={"wrap": Flips}, **ONE))


# --- changed uploads ------------------------------------------------------------------------------


def received(change):
    """Return a transform that changes the uploads of a round."""

    class Received:
        @pf.hookimpl
        def receive_uploads(self, server, uploads):
            return change(dict(uploads))

    return Received


def of_first(**tensors):
    return lambda uploads: {**uploads, 0: pf.Payload(uploads[0], **tensors)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda uploads: [*uploads.values()], "wrap.receive_uploads returned a list of 1"),
        (lambda uploads: uploads | {7: uploads[0]}, "returned an upload of 7"),
        (lambda uploads: {0: dict(uploads[0])}, "client 0: a dict of 1"),
        (of_first(x=torch.tensor([torch.nan])), "client 0: 'x' with NaN or infinity"),
        (of_first(x=torch.ones(1).long()), "client 0: 'x' is a tensor of int64 [1]"),
        (of_first(y=torch.ones(1)), "client 0: 'y' is a tensor of float32 [1]"),
        (of_first(x=torch.ones(1).to_sparse()), "returned 'x' as a sparse_coo tensor"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_what_is_passed_on_keeps_the_rules_of_payload_validation(change, words, dry):
    plan = make_plan(Sender, transforms={"wrap": received(change)}, **ONE)
    with pytest.raises((pf.UsageError, pf.RunFailure)) as told:
        dry_run(plan) if dry else open_federation(plan).round(0)
    assert words in told.value.what and "receive_uploads, round 1" in told.value.what
    assert told.value.near and told.value.do


def test_uploads_may_be_changed_and_left_out():
    plan = make_plan(Sender, transforms={"wrap": received(of_first(x=torch.tensor([4.0])))}, **ONE)
    open_federation(plan).round(0)
    assert ("seen", 4.0) in CALLS
    CALLS.clear()
    plan = make_plan(Sender, transforms={"wrap": received(lambda uploads: {})}, **ONE)
    open_federation(plan).round(0)
    assert not [call for call in CALLS if call[0] == "seen"]
