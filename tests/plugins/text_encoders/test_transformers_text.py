"""Tests of `transformers` with tiny, randomly initialised CLIP and BERT models."""

from __future__ import annotations

import json
import sys
import warnings

import pytest
import safetensors.torch
import torch
from tiny_transformers import SIZES, save_bert, save_tokenizer

import protofl as pf
from protofl_plugins.text_encoders.transformers_text import Transformers

CPU = torch.device("cpu")
TEXTS = ["A photo of a cat.", "A photo of a dog: it barks."]


@pytest.fixture(scope="module", autouse=True)
def library():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield pytest.importorskip("transformers", reason="transformers is not installed")


def save_clip(library, folder, scale=3.0):
    folder.mkdir()
    size = save_tokenizer(library, folder, ["<pad>", "<unk>", "<start>", "<end>"])
    text = {"vocab_size": size, "hidden_size": 8, "projection_dim": 10, **SIZES}
    text |= {"max_position_embeddings": 24, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    vision = {"hidden_size": 8, "image_size": 8, "patch_size": 4, "projection_dim": 10, **SIZES}
    config = library.CLIPConfig(text_config=text, vision_config=vision, projection_dim=10)
    torch.manual_seed(0)
    model = library.CLIPModel(config)
    model.logit_scale.data.fill_(scale)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(library, tmp_path_factory):
    return save_bert(library, tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def clip(library, tmp_path_factory):
    return save_clip(library, tmp_path_factory.mktemp("models") / "clip")


def opened(folder):
    encoder = Transformers([], 8, folder)
    encoder.load(CPU)
    return encoder


def sizes(encoder):
    return encoder.dim, encoder.token_dim, encoder.logit_scale


def test_bert_gives_its_first_output(library, bert):
    made, model = opened(bert), library.BertModel.from_pretrained(bert).eval()
    tokenizer = library.AutoTokenizer.from_pretrained(bert)
    assert sizes(made) == (12, 12, 4.6052)
    for text in TEXTS:
        states = model(**tokenizer([text], return_tensors="pt")).last_hidden_state
        assert torch.allclose(made.embed([text]), states[:, 0], atol=1e-5)
    together = made.embed(TEXTS)  # different lengths: padding has no effect
    assert torch.allclose(together, torch.cat([made.embed([t]) for t in TEXTS]), atol=1e-5)


def test_clip_gives_its_projection_and_scale(library, clip):
    made, model = opened(clip), library.CLIPModel.from_pretrained(clip).eval()
    tokenizer = library.AutoTokenizer.from_pretrained(clip)
    assert sizes(made) == (10, 8, 3.0)
    for text in TEXTS:
        ids = tokenizer([text], return_tensors="pt")
        pooled = model.text_model(ids["input_ids"]).pooler_output
        assert torch.allclose(made.embed([text]), model.text_projection(pooled), atol=1e-5)


@pytest.mark.parametrize("which", ["bert", "clip"])
def test_prompts_replace_the_first_token_embeddings(request, which):
    made = opened(request.getfixturevalue(which))
    table = made._model.get_input_embeddings().weight
    ids = made._tokenizer([TEXTS[0]])["input_ids"][0]
    own = table[torch.tensor(ids[:3])].unsqueeze(0)  # the text's own tokens change nothing
    assert torch.allclose(made.embed_prompts(TEXTS[:1], own), made.embed(TEXTS[:1]), atol=1e-5)
    other = torch.zeros_like(own).requires_grad_()
    found = made.embed_prompts(TEXTS[:1], other)
    assert not torch.allclose(found, made.embed(TEXTS[:1]), atol=1e-4)
    found[0, 0].backward()  # the sum is constant behind a layer norm
    assert other.grad.abs().sum() > 0
    long = torch.zeros(1, 16, own.shape[2])
    assert made.embed_prompts(["cat"], long).shape == found.shape  # a text of fewer tokens


def options_for(folder):
    return {"fedtsp": {"encoder": "transformers", "path": str(folder)}}


def test_a_run_with_clip(clip, tmp_path):
    from protofl.testing import toy

    plan = toy.make_plan("fedtsp", tmp_path, options=options_for(clip), feature_dim=10)
    federation = toy.Toy(plan)
    federation.rounds(2)
    trained = federation.server.modules["fedtsp"]["trained"]
    assert trained.prompts.shape == (4, 5, 8)
    assert trained.s.item() != pytest.approx(3.0, abs=1e-6)


def test_the_files_of_the_folder_are_part_of_a_run(clip, tmp_path):
    from protofl.runs.results.identity import file_digests
    from protofl.testing import toy

    plan = toy.make_plan("fedtsp", tmp_path, options=options_for(clip), feature_dim=10)
    found = file_digests(plan)
    assert {"fedtsp.path/model.safetensors", "fedtsp.path/config.json"} <= found.keys()


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda f: (f / "config.json").unlink(), "it has no config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "has no weights as safetensors"),
        (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda f: (f / "config.json").write_text('{"model_type": "no"}'), "cannot be read"),
        (lambda f: (f / "model.safetensors").write_bytes(b"cut off"), "cannot be"),
    ],
)
@pytest.mark.parametrize("save", [save_bert, save_clip])
def test_a_damaged_folder_is_named(library, tmp_path, save, break_it, words):
    folder = save(library, tmp_path / "model")
    break_it(folder)
    with pytest.raises(pf.UsageError) as caught:
        opened(folder)
    assert words in caught.value.what and str(folder) in caught.value.what
    assert caught.value.do


def test_a_missing_library_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(pf.UsageError, match="needs transformers") as caught:
        Transformers([], 8, tmp_path)
    assert caught.value.do == "pip install 'protofl[transformers]'"


def test_weights_that_lack_a_scale_have_the_usual_one(library, tmp_path):
    folder = save_clip(library, tmp_path / "clip")
    model = library.CLIPTextModelWithProjection.from_pretrained(folder)
    other = tmp_path / "text"
    model.save_pretrained(other)
    held = safetensors.torch.load_file(other / "model.safetensors")
    assert "logit_scale" not in held
    assert json.loads((other / "config.json").read_text())["model_type"] == "clip_text_model"
    assert sizes(Transformers([], 8, other)) == (10, 8, 4.6052)


def test_a_text_alone_decides_and_nothing_is_trained(bert):
    encoder = opened(bert)
    assert torch.allclose(encoder.embed(TEXTS), encoder.embed(TEXTS[::-1]).flip(0), atol=1e-5)
    assert not any(parameter.requires_grad for parameter in encoder._model.parameters())
    assert not encoder._model.training
