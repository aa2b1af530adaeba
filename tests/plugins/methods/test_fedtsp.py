"""Tests of FedTSP against loops: T, L_i, server steps, options, bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from slow_equations import affine, cross_entropy, mean, mean_cross_entropy, numbers

import protofl as pf
from protofl.runs.request.request import read_request
from protofl.runs.results.identity import file_digests
from protofl.system import consent
from protofl.system.profile import RunProfile
from protofl.testing.equality import double_precision
from protofl.testing.toy import MIXED, make_images
from protofl_plugins.text_encoders.encoder import BUILT_IN, LoadedOnce, TextEncoder
from protofl_plugins.text_encoders.tiny_text import TinyText

CLASSES = {0: [0, 1], 1: [1, 3], 4: [1, 3, 0]}
NAMES = ["a", "b", "c", "d"]
ROOT = Path(__file__).parents[3]


def approx(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))


class Table(TextEncoder):
    """Fixed embeddings of the classes, from a file."""

    def __init__(self, classes, feature_dim, path):
        with np.load(path) as file:
            self.rows, self.logit_scale = torch.from_numpy(file["rows"]), file["scale"].item()
        self.dim = self.rows.shape[1]

    def embed(self, texts):
        return self.rows[: len(texts)]


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Return ``table(rows, scale)``, which writes class embeddings and returns the options."""
    monkeypatch.setitem(BUILT_IN, "table", f"{__name__}:Table")
    consent.allow([BUILT_IN["table"]])

    def make(rows, scale=TextEncoder.logit_scale):
        np.savez(tmp_path / "e.npz", rows=rows, scale=scale)
        return {"encoder": "table", "path": str(tmp_path / "e.npz")}

    return make


def tiny_text():
    encoder = TinyText([], 8, None)
    encoder.load(torch.device("cpu"))
    return encoder


# --- T --------------------------------------------------------------------------------------------


def test_t_is_the_mean_over_a_class_s_descriptions(toy, tmp_path):
    file = tmp_path / "texts.txt"
    lines = ["a: round", "b: tall", "b: thin and tall", "c: flat", "d: wet", "d: cold", "d: dark"]
    names = {letter: f"class {number}" for number, letter in enumerate(NAMES)}
    file.write_text("\n".join(names[line[0]] + line[1:] for line in lines))
    federation = toy("fedtsp", set={"descriptions": str(file), "trains": "nothing"})
    encoder = tiny_text()
    for number, letter in enumerate(NAMES):
        texts = [line.partition(": ")[2] for line in lines if line.startswith(letter)]
        texts = [f"A photo of a class {number}: {text}" for text in texts]
        expected = mean([numbers(encoder.embed([text]))[0] for text in texts])
        assert numbers(federation.server.global_state["prototypes"][number]) == pytest.approx(
            expected, abs=1e-5
        )


def test_prompts_of_a_class_stand_in_each_of_its_texts(toy):
    federation = toy("fedtsp", set={"m": 3})
    trained = federation.server.modules["fedtsp"]["trained"]
    assert trained.prompts.shape == (4, 3, 64)
    assert 0.015 < trained.prompts.detach().std() < 0.025
    encoder = tiny_text()
    for number, name in enumerate(federation.plan.info.class_names):
        row = encoder.embed_prompts([f"A photo of a {name}."], trained.prompts[number : number + 1])
        found = federation.server.global_state["prototypes"][number]
        assert torch.allclose(found, row[0], atol=1e-5)


# --- L_i ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [[0, 1, 2, 3], [0, 3]])
def test_the_loss_is_that_of_the_equation(toy, randn, rows, known):
    federation = toy("fedtsp", set={"lambda": 3.0})
    payload, T = rows(known, seed=3)
    payload["logit_scale"] = torch.tensor(1.3, dtype=torch.float64)
    record = federation.prepare(0, payload)
    z, y = randn(6, 8, seed=2), [1, 1, 3, 0, 3, 3]
    terms = federation.terms(record, z, torch.tensor(y))
    head = record.model.head
    scores = affine(numbers(z), numbers(head.weight), numbers(head.bias))
    assert terms["ce"].item() == approx(mean_cross_entropy(scores, y))
    each = [
        cross_entropy([math.exp(1.3) * cosine(row, T[c]) for c in known], known.index(label))
        for row, label in zip(numbers(z), y, strict=True)
        if label in known
    ]
    assert terms["align"].item() == approx(3.0 * sum(each) / 6)


# --- L_S ------------------------------------------------------------------------------------------


def slow_steps(embed, prompts, s, Q, steps, lr):
    """Run gradient descent on L_S, one pair of classes at a time. Return T and s."""
    parameters = [s] if prompts is None else [s, prompts]
    for _ in range(steps):
        T, loss = embed(prompts), 0.0
        for c, row in Q.items():
            scores = [s.exp() * torch.cosine_similarity(row, T[k], dim=0) for k in range(4)]
            loss = loss - torch.log_softmax(torch.stack(scores), 0)[c] / len(Q)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= lr * gradient
    return embed(prompts).detach(), s.detach()


@pytest.mark.parametrize("trains", ["prompts", "scale"])
def test_the_server_descends_on_prompts_and_scale(toy, rows, trains):
    options, data = {"trains": trains, "steps": 3, "server_lr": 0.2, "m": 2}, make_images(MIXED)
    with double_precision():
        federation = toy("fedtsp", set=options, data=data)
        _descend(federation, rows, trains)


def _descend(federation, rows, trains):
    sent = {client: rows(classes, seed=client) for client, classes in CLASSES.items()}
    server = federation.views()[1]
    trained = server.modules["trained"]
    assert {n for n, _ in trained.named_parameters()} == {"s"} | (
        {"prompts"} if trains == "prompts" else set()
    )
    encoder = tiny_text()
    texts = [f"A photo of a {name}." for name in server.class_names]
    prompts = None
    if trains == "prompts":
        prompts = trained.prompts.detach().clone().requires_grad_()

    def embed(prompts):
        return encoder.embed(texts) if prompts is None else encoder.embed_prompts(texts, prompts)

    Q = {
        c: sum(torch.tensor(r[c]) for r in having) / len(having)
        for c in range(4)
        if (having := [r for _, r in sent.values() if c in r])
    }
    assert {*Q} == {0, 1, 3}
    s = trained.s.detach().clone().requires_grad_()
    federation.server.round = 0
    T, s = slow_steps(embed, prompts, s, Q, 3, 0.2)
    before = federation.server.global_state["prototypes"]
    uploads = {client: payload for client, (payload, _) in sent.items()}
    found = federation.call("server_train", server=server, uploads=uploads)
    assert found["classes"].tolist() == [0, 1, 2, 3]
    assert torch.allclose(found["prototypes"], T, rtol=1e-9, atol=1e-12)
    assert found["logit_scale"].item() == approx(s.item())
    assert s.item() != pytest.approx(4.6052, abs=1e-4)
    assert torch.equal(before, found["prototypes"]) == (trains == "scale")


# --- a run ----------------------------------------------------------------------------------------


def test_what_travels_and_what_is_trained_by_default(toy):
    federation = toy("fedtsp")
    lines = federation.rounds(2)
    assert lines[0]["download_floats"] == 4 * (4 * 8 + 1)
    assert {*pf.Payload.from_bytes(federation.pool.uploads(0)[0])} == {"prototypes", "classes"}
    first, second = (pf.Payload.from_bytes(federation.pool.downloads(r)[0]) for r in range(2))
    assert first.keys() == second.keys() == {"prototypes", "classes", "logit_scale"}
    assert first["logit_scale"].item() == pytest.approx(4.6052)
    assert not torch.equal(first["prototypes"], second["prototypes"])
    assert not torch.equal(first["logit_scale"], second["logit_scale"])


def test_a_run_notes_that_tiny_text_is_random(toy, table, randn):
    (note,) = toy("fedtsp").server.notes
    assert "random weights" in note and "encoder=transformers" in note
    assert not toy("fedtsp", set=table(randn(4, 8))).server.notes


def test_a_table_of_embeddings_stays_as_it_is(toy, table, randn):
    rows = randn(4, 8).numpy()
    federation = toy("fedtsp", set=table(rows, scale=2.0))
    federation.rounds(2)
    for number in range(2):
        sent = pf.Payload.from_bytes(federation.pool.downloads(number)[0])
        assert torch.equal(sent["prototypes"], torch.from_numpy(rows).float())
        assert sent["logit_scale"].item() == 2.0


def test_a_table_s_scale_is_trained_if_asked(toy, table, randn):
    encoder = table(randn(4, 8).numpy())
    federation = toy("fedtsp", set={"trains": "scale", **encoder})
    federation.rounds(2)
    first, second = (pf.Payload.from_bytes(federation.pool.downloads(r)[0]) for r in range(2))
    assert torch.equal(first["prototypes"], second["prototypes"])
    assert first["logit_scale"].item() != second["logit_scale"].item()


def test_descriptions_are_recorded_and_the_file_is_not_needed_again(toy, tmp_path):
    file = tmp_path / "texts.txt"
    names = toy("fedtsp").plan.info.class_names
    file.write_text("\n".join(f"{name}: one\n{name}: two" for name in names))
    plan = toy("fedtsp", set={"descriptions": str(file)}).plan
    recorded = plan.settings.options["fedtsp"]["descriptions"]
    assert recorded == {name: ["one", "two"] for name in names}
    file.unlink()
    again = toy("fedtsp", set={"descriptions": recorded}).plan
    assert again.settings.options == plan.settings.options


# --- bad input ------------------------------------------------------------------------------------


def refused(make):
    with pytest.raises(pf.UsageError) as caught:
        make()
    return str(caught.value)


def test_another_width_than_k_is_named(toy, table, randn):
    encoder = table(randn(4, 12).numpy())
    words = refused(lambda: toy("fedtsp", set=encoder))
    assert "table: embeddings have 12 numbers, but features have K = 8" in words
    assert "give --feature-dim 12" in words


def test_an_encoder_without_tokens_has_no_prompts(toy, table, randn):
    encoder = table(randn(4, 8).numpy())
    found = refused(lambda: toy("fedtsp", set={"trains": "prompts", **encoder}))
    assert "table: trains=prompts" in found and "trains=scale or trains=nothing" in found


def test_the_file_of_descriptions_is_checked(toy):
    words = refused(lambda: toy("fedtsp", set={"descriptions": "nowhere.txt"}))
    assert "the file of descriptions nowhere.txt cannot be read" in words


# --- the server's text encoder --------------------------------------------------------------------


def loaded(encoder, *, dry=False):
    made = LoadedOnce("tiny-text", None, ["x", "y"], 8, torch.device("cpu"), dry=dry)
    made.encoder = encoder
    return made


def test_the_encoder_is_loaded_once_and_not_in_a_dry_run():
    opened = []

    class Counted(TinyText):
        def load(self, device):
            opened.append(torch.rand(1))  # loading may draw from the global generator
            super().load(device)

    state = torch.random.get_rng_state()
    tried, real = loaded(Counted([], 8, None), dry=True), loaded(Counted([], 8, None))
    prompts = torch.zeros(2, 1, 64, requires_grad=True)
    for one in (tried, real):
        assert one.embed(["x", "y"]).shape == one.embed_prompts(["x", "y"], prompts).shape == (2, 8)
        assert one.embed_prompts(["x", "y"], prompts).requires_grad
        assert len(opened) == (one is real)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("made", [torch.zeros(2, 3), torch.full((2, 8), torch.nan)])
def test_a_wrong_embedding_is_named(made):
    class Odd(TextEncoder):
        def embed(self, texts):
            return made

    with pytest.raises(pf.UsageError, match=r"tiny-text: expected finite .* \(2, 8\)"):
        loaded(Odd([], 8, None)).embed(["x", "y"])


@pytest.fixture
def letters(tmp_path):
    """Return ``letters.py:Letters`` with the encoder of the method's page."""
    text = (ROOT / "docs/reference/methods/fedtsp.md").read_text(encoding="utf-8")
    (tmp_path / "letters.py").write_text(text.split("```python\n")[1].split("```")[0])
    return f"{tmp_path / 'letters.py'}:Letters"


def test_a_class_of_one_s_own(toy, letters, tmp_path):
    consent.allow([letters])
    federation = toy("fedtsp", set={"encoder": letters})
    found = federation.server.global_state["prototypes"]
    name = f"A photo of a {federation.plan.info.class_names[0]}."
    share = sum(ord(letter) % 8 == 1 for letter in name.lower()) / len(name)
    assert found[0, 1].item() == pytest.approx(share)
    before = file_digests(federation.plan)["fedtsp.encoder"]
    (tmp_path / "letters.py").write_text((tmp_path / "letters.py").read_text() + "# changed\n")
    assert file_digests(federation.plan)["fedtsp.encoder"] != before


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        ("tiny-txt", "unknown text encoder"),
        ("protofl_plugins.methods.fedtsp:FedTSP", "FedTSP is not a text encoder"),
    ],
)
def test_an_encoder_that_is_none(toy, encoder, words):
    assert words in refused(lambda: toy("fedtsp", set={"encoder": encoder}))


def test_the_code_of_an_encoder_needs_consent(few, letters, tmp_path):
    file = tmp_path / "own" / "mine.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"method": "fedtsp", "set": {"encoder": letters}}))
    small = {"models": "cnn4", "dataset": few, "clients": 2, "rounds": 1, "backend": "local"}
    words = refused(lambda: pf.run(config=file, **small))
    assert f"fedtsp.encoder={letters} comes from a file" in words
    assert f"to allow it: --set fedtsp.encoder={letters}" in words
    with pytest.raises(pf.UsageError, match="is code, which does not run without your consent"):
        pf.load_class(letters)
    request = read_request({"method": "fedtsp", "set": {"encoder": letters}, **small})
    assert request.said == {"fedtsp": {"encoder": letters}}
    out = tmp_path / "run"
    pf.run("fedtsp", set={"encoder": letters}, out=out, progress=False, dry_run=False, **small)
    assert pf.load_class(letters).__name__ == "Letters"
    pf.run(config=file, out=tmp_path / "again", progress=False, dry_run=False, **small)


def test_the_encoder_is_a_part_of_the_profile(toy):
    federation = toy("fedtsp")
    federation.server.profile = profile = RunProfile()
    with profile.round():
        federation.rounds(1)
    seconds = profile.summary()["server"]
    assert seconds["text encoder"] > 0 and seconds["server_train"] > 0
