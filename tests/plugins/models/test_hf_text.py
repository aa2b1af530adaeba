"""Tests of `hf-text:NAME` with tiny nets of transformers that are made here, and of adapters."""

from __future__ import annotations

import json
import warnings
from copy import deepcopy

import pytest
import torch
from slowness import quick
from tiny_transformers import save_bert

import protofl as pf
from protofl.backends import Host, Plan
from protofl.hooks.models.architecture import unset_model
from protofl.hooks.models.flops import profile
from protofl.testing.equality import Run, double_precision
from protofl_plugins.models.frozen import Frozen
from protofl_plugins.models.hf_text import HFCausal, HFText, TextEncoder

SAMPLE = pf.datasets.SampleSpec((12,), "tokens", vocabulary=150, padding=0)
WIDTH, LAYERS, IDS, LONGEST = 32, 2, 160, 40
RANK_METHODS = ("hetlora", "flexlora", "flora", "raflora", "fedit")


@pytest.fixture(scope="module", autouse=True)
def library():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield pytest.importorskip("transformers", reason="needs protofl[transformers]")


BERT = {
    "vocab_size": IDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
    "intermediate_size": 2 * WIDTH, "max_position_embeddings": LONGEST,
}  # fmt: skip
MADE = {
    "bert": lambda t: t.BertModel(t.BertConfig(**BERT)),
    "roberta": lambda t: t.RobertaModel(
        t.RobertaConfig(**{**BERT, "max_position_embeddings": LONGEST + 2})
    ),
    "distilbert": lambda t: t.DistilBertModel(
        t.DistilBertConfig(
            vocab_size=IDS, dim=WIDTH, n_layers=LAYERS, n_heads=2, hidden_dim=2 * WIDTH,
            max_position_embeddings=LONGEST,
        )
    ),
    "gpt2": lambda t: t.GPT2Model(
        t.GPT2Config(
            vocab_size=IDS, n_embd=WIDTH, n_layer=LAYERS, n_head=2, n_positions=LONGEST,
            bos_token_id=1, eos_token_id=1,
        )
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(library, tmp_path_factory):
    """Return ``saved(kind)``: a folder with a tiny net and random weights, and the net."""
    root, made = tmp_path_factory.mktemp("nets"), {}

    def save(kind):
        if kind not in made:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(5)
                net = MADE[kind](library)
            net.save_pretrained(root / kind)
            made[kind] = root / kind, net.eval()
        return made[kind]

    return save


def architecture(folder, **options):
    (found,) = HFText().architectures(config=HFText.Config(names_or_paths=str(folder), **options))
    return found


def built(folder, dim=WIDTH, **options):
    return architecture(folder, **options).build(SAMPLE, 7, dim)


def texts(count=5):
    x = torch.randint(1, 150, (count, 12), generator=torch.Generator().manual_seed(0))
    for row, length in enumerate((12, 9, 4, 1)):
        x[row, length:] = 0
    return x


# --- encoders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", quick(MADE, "bert"))
def test_features_are_the_mean_over_real_tokens_of_each_text_by_itself(saved, kind):
    folder, net = saved(kind)
    model = built(folder).eval()
    with torch.no_grad():
        for x, found in zip(texts(), model.features(texts()), strict=True):
            alone = x[x != 0].unsqueeze(0)
            wanted = net(input_ids=alone).last_hidden_state[0].mean(0)
            torch.testing.assert_close(found, wanted, atol=2e-6, rtol=1e-5)


def test_a_text_of_padding_alone_has_features_zero(saved):
    model = built(saved("bert")[0]).eval()
    assert not model.features(torch.zeros(2, 12, dtype=torch.int64)).any()


def test_weights_that_nothing_uses_are_left_out(saved):
    names = [name for name, _ in built(saved("bert")[0]).named_parameters()]
    assert not [name for name in names if "pooler" in name]


def test_a_frozen_net_is_shared_and_followed_by_a_trained_layer(saved):
    folder = saved("bert")[0]
    one, other = (built(folder, dim=16, freeze="all") for _ in range(2))
    assert [*dict(one.named_parameters())] == [
        "extractor.1.weight", "extractor.1.bias", "head.weight", "head.bias",
    ]  # fmt: skip
    nets = [m.extractor[0].on(torch.device("cpu")) for m in (one, other, deepcopy(one))]
    assert nets[0] is nets[1] is nets[2]
    assert not any(p.requires_grad for p in nets[0].parameters())
    free = built(folder)
    assert all(p.requires_grad for p in free.parameters())  # though the same folder was frozen
    assert free.extractor.net.training


def test_a_net_that_is_first_built_without_weights_has_them(library, saved, tmp_path):
    """Worker processes start with such a net."""
    net = saved("bert")[1]
    net.save_pretrained(tmp_path / "again")
    model = unset_model(architecture(tmp_path / "again", freeze="all"), SAMPLE, 7, WIDTH)
    wanted = {f"net.{n}": t for n, t in net.state_dict().items() if not n.startswith("pooler")}
    found = model.extractor[0].on(torch.device("cpu")).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def plan(tmp_path, folder, **given):
    return Plan.make(
        {
            "method": "fedproto", "models": f"hf-text:{folder}", "dataset": "python-docs",
            "clients": 2, "rounds": 1, "device": "cpu", "backend": "local", "feature_dim": 16,
            "subset": 60, "partition": "iid", "data_dir": tmp_path, **given,
            "options": {"dataset": {"vocabulary": 150, "length": 12}, **given.get("options", {})},
        }
    )  # fmt: skip


@pytest.mark.slow
def test_kept_features_are_those_that_the_net_computes_each_time(saved, tmp_path):
    folder = saved("bert")[0]
    runs = [
        Run(plan(tmp_path, folder, options={"models": {"freeze": "all", "keep_features": keep}}))
        for keep in (True, False)
    ]
    kept, plain = (run.host.client(0) for run in runs)
    assert kept.train.inputs().shape[1:] == (WIDTH,) and kept.train.inputs().is_floating_point()
    for name, tensor in plain.model.state_dict().items():
        torch.testing.assert_close(kept.model.state_dict()[name], tensor, atol=1e-5, rtol=1e-4)
    assert isinstance(kept.model.extractor[0], Frozen)


# --- bad input ------------------------------------------------------------------------------------


def refused(call, *words):
    with pytest.raises(pf.UsageError) as error:
        call()
    assert all(word in str(error.value) for word in words), str(error.value)


def test_names_that_are_no_nets(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = saved("bert")[0]
    refused(lambda: architecture(""), "needs names of models", "--models hf-text:")
    refused(lambda: architecture(tmp_path / "none"), "there is no such folder", "save_pretrained")
    refused(lambda: architecture("some/net"), "neither a folder", "hf download some/net")
    refused(lambda: architecture(tmp_path), "it has no config.json", "save_pretrained")
    refused(lambda: architecture(f"{folder},{folder}"), "two nets are called 'bert'", "rename")
    refused(lambda: architecture(folder, keep_features=True), "freeze=all")
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "t5" / "model.safetensors").write_bytes(b"")
    refused(lambda: architecture(tmp_path / "t5"), "a decoder of its own (t5)", "BERT")


def test_weights_that_are_damaged_or_incomplete(library, saved, tmp_path):
    net = saved("bert")[1]
    for name, change in (
        ("damaged", None),
        ("incomplete", {n: t for n, t in net.state_dict().items() if "layer.1" not in n}),
    ):
        net.save_pretrained(tmp_path / name, state_dict=change)
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"garbage")
    refused(lambda: built(tmp_path / "damaged"), "cannot be loaded", "save_pretrained")
    refused(lambda: built(tmp_path / "incomplete"), "the weights lack encoder.layer.1", "more")


@pytest.mark.parametrize("kind", quick(MADE, "roberta"))
def test_ids_and_lengths_that_the_net_does_not_know(saved, kind):
    net = architecture(saved(kind)[0])
    for length, ids, words in (
        (12, IDS + 1, ("has 160 token ids, and the data have 161", "tokenizer", "vocabulary=160")),
        (LONGEST + 1, IDS, ("up to 40 tokens", "have 41", "dataset.length=40")),
    ):
        sample = pf.datasets.SampleSpec((length,), "tokens", vocabulary=ids, padding=0)
        refused(lambda sample=sample: net.build(sample, 7, WIDTH), *words)
    net.build(pf.datasets.SampleSpec((LONGEST,), "tokens", vocabulary=IDS), 7, WIDTH)


def test_a_cached_name_is_found_and_a_near_one_named(saved, tmp_path, monkeypatch):
    """The folders of the cache are those of huggingface_hub; nothing is downloaded."""
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--some--tiny-bert"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    (repository / "blobs").mkdir()
    saved("bert")[1].save_pretrained(repository / "snapshots" / "abc")
    group, config = HFText(), HFText.Config(names_or_paths="some/tiny-bert")
    assert group.folders(config) == {"tiny-bert": repository / "snapshots" / "abc"}
    assert architecture("some/tiny-bert").name == "tiny-bert"


def test_a_run_records_the_weights_and_not_the_place(saved, library, tmp_path, monkeypatch):
    given = {
        "dataset": "python-docs", "clients": 2, "rounds": 1, "feature_dim": 16, "backend": "local",
        "subset": 60, "data_dir": tmp_path, "partition": "iid", "dry_run": False,
        "set": {
            "dataset.vocabulary": 150, "dataset.length": 12, "models.freeze": "all",
            "models.keep_features": True,
        },
    }  # fmt: skip
    configs = []
    for place in ("here", "there"):
        saved("bert")[1].save_pretrained(tmp_path / place / "net")
        monkeypatch.chdir(tmp_path / place)
        pf.run("fedproto", models="hf-text:net", **given, out=tmp_path / place / "run")
        configs.append(json.loads((tmp_path / place / "run" / "config.json").read_text()))
    assert [*configs[0]["files"]] == ["models/net/config.json", "models/net/model.safetensors"]
    assert configs[0]["models"] == f"hf-text:{tmp_path / 'here' / 'net'}"
    assert configs[0]["identity"] == configs[1]["identity"]


def test_words_that_the_data_number_are_noted(saved, tmp_path):
    notes = plan(tmp_path, saved("bert")[0]).notes
    assert [note for note in notes if "dataset.tokenizer=NAME" in note]


def test_a_tokenizer_makes_the_ids_of_the_net(library, tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs protofl[hf]")
    folder = save_bert(library, tmp_path / "bert")
    sentences = [f"photo cat number {n}" if n % 2 else f"dog number {n}" for n in range(30)]
    made = {"text": sentences, "label": [n % 2 for n in range(30)]}
    datasets.Dataset.from_dict(made).save_to_disk(tmp_path / "set")
    whole = plan(
        tmp_path,
        folder,
        dataset=f"hf:{tmp_path / 'set'}",
        subset=None,
        options={"dataset": {"tokenizer": str(folder), "length": 16}},
    )
    assert not [note for note in whole.notes if "tokenizer" in note]
    client = Host(whole).client(0)
    real = client.train.inputs()
    assert (
        int(real.max())
        < whole.info.sample.vocabulary
        == client.model.extractor.net.config.vocab_size
    )
    assert (real == whole.info.sample.padding).any()


# --- adapters of attention ------------------------------------------------------------------------


def adapted(saved, tmp_path, method="fedit", kind="bert", **options):
    own = {"ranks": "2,4,8", "alpha": 16, **options}
    made = plan(
        tmp_path, saved(kind)[0], method=method, clients=3, subset=90, options={method: own}
    )
    return made


NAMES = {
    "bert": ("query", "value"),
    "roberta": ("query", "value"),
    "distilbert": ("q_lin", "v_lin"),
    "gpt2": ("c_attn",),
}


@pytest.mark.parametrize("kind", quick(MADE, "bert", "gpt2"))
def test_an_adapted_net_has_queries_and_values_w_plus_s_b_a(saved, tmp_path, kind):
    with double_precision():
        client = Host(adapted(saved, tmp_path, kind=kind)).client(1)
        net = client.model.extractor
        assert net.scale == 16 / 4  # α/r of rank 4
        ends = {name.split(".")[-2] for name in net.sizes}
        assert ends == {*NAMES[kind]} and len(net.sizes) == LAYERS * len(ends)
        plain = deepcopy(net.frozen.on(torch.device("cpu")))
        assert isinstance(plain, TextEncoder)
        with torch.no_grad():
            for name, own in net.adapters().items():
                own.b.normal_(generator=torch.Generator().manual_seed(1))
                W = plain.get_parameter(name)
                W += 16 / 4 * (own.b @ own.a)
            torch.testing.assert_close(net(texts()), plain(texts()), atol=1e-9, rtol=1e-9)
            assert not torch.allclose(plain(texts()), net.frozen(texts()))
        trained = {n for n, p in client.model.named_parameters() if p.requires_grad}
        assert {name.split(".")[0] for name in trained} == {"extractor", "head"}
        assert all(n.startswith(("extractor.a.", "extractor.b.", "head.")) for n in trained)


@pytest.mark.parametrize("method", quick(RANK_METHODS, "fedit", "flora"))
def test_a_run_sends_the_factors_of_each_rank_alone(saved, tmp_path, method):
    run = Run(adapted(saved, tmp_path, method), rounds=1)
    head = 16 * 7 + 7
    for client, rank in enumerate((2, 4, 8)):
        upload = run.host.client(client)
        sent = pf.Payload.from_bytes(run.pool.uploads(0)[client])
        floats = sum(t.numel() for t in sent.values() if t.is_floating_point())
        assert floats == LAYERS * 2 * rank * 2 * WIDTH + head
        assert {*sent.keys()} == {
            "samples", "head/weight", "head/bias",
            *(f"adapter/{name}/{part}" for name in upload.model.extractor.sizes for part in "ab"),
        }  # fmt: skip


@pytest.mark.parametrize(
    ("targets", "count"), [("key", 2), ("query,key,value", 6), ("0.attention.self.query", 1),
                           ("all", 12), (["query", "output.dense"], 6)],
)  # fmt: skip
def test_layers_are_named_by_the_ends_of_their_paths(saved, tmp_path, targets, count):
    net = Host(adapted(saved, tmp_path, targets=targets)).client(0).model.extractor
    assert len(net.sizes) == count


def test_unknown_layers_are_refused(saved, tmp_path):
    refused(
        lambda: adapted(saved, tmp_path, targets="query,valeu"),
        "bert has no linear layer 'valeu'", "did you mean 'value'?",
    )  # fmt: skip
    refused(lambda: adapted(saved, tmp_path, targets="x9"), "its names: query, key, value, dense")
    refused(lambda: adapted(saved, tmp_path, ranks="33"), "rank 33 is above 32", "ranks=32")


# --- causal nets ----------------------------------------------------------------------------------

LANGUAGE = pf.datasets.Task("language-model")


def causal(folder):
    (found,) = HFCausal().architectures(config=HFCausal.Config(names_or_paths=str(folder)))
    sample = pf.datasets.SampleSpec((12,), "tokens", vocabulary=150, padding=0, task=LANGUAGE)
    return found.build(sample, 11, 768)


def test_outputs_are_the_losses_of_the_library(library, saved):
    folder = saved("gpt2")[0]
    net = library.AutoModelForCausalLM.from_pretrained(folder).eval()
    model, x = causal(folder).eval(), texts()
    with torch.no_grad():
        found = model(x)
        real = (x[:, 1:] != 0).float()
        wanted = net(input_ids=x, labels=x.masked_fill(x == 0, -100)).loss
    assert not found[real == 0].any()
    assert float(LANGUAGE.loss(found, real)) == pytest.approx(float(wanted), rel=1e-5)


def test_nets_that_see_later_tokens_are_refused(library, saved, tmp_path):
    net = library.BertForMaskedLM(saved("bert")[1].config)
    net.save_pretrained(tmp_path / "bert")
    refused(lambda: causal(tmp_path / "bert"), "bert is not causal", "GPT-2")
    text = pf.datasets.SampleSpec((12,), "tokens", vocabulary=150, padding=0)
    (found,) = HFCausal().architectures(
        config=HFCausal.Config(names_or_paths=str(saved("gpt2")[0]))
    )
    refused(lambda: found.build(text, 7, 768), "predict next tokens", "dataset.task=language-model")


@pytest.mark.parametrize("method", quick(RANK_METHODS, "fedit"))
def test_adapters_of_a_causal_net_learn_next_tokens(saved, tmp_path, method):
    own = {"ranks": "2,4", "alpha": 8}
    made = plan(
        tmp_path, saved("gpt2")[0], method=method, models=f"hf-causal:{saved('gpt2')[0]}",
        options={
            "dataset": {"vocabulary": 150, "length": 12, "task": "language-model"}, method: own
        },
    )  # fmt: skip
    run = Run(made, rounds=2)
    first, last = (line["metrics"]["perplexity"]["all"] for line in run.lines)
    assert last < first < 1.2 * 150
    net = run.host.client(1).model.extractor
    assert net.scale == 2 and {name.split(".")[-2] for name in net.sizes} == {"c_attn"}
    sent = pf.Payload.from_bytes(run.pool.uploads(1)[1])
    floats = sum(t.numel() for t in sent.values() if t.is_floating_point())
    assert floats == LAYERS * 4 * (WIDTH + 3 * WIDTH)


def test_texts_of_hf_as_a_language_model(library, tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs protofl[hf]")
    sentences = [f"dog and cat photo {n}" for n in range(40)]
    made = {"text": sentences, "label": [n % 2 for n in range(40)]}
    datasets.Dataset.from_dict(made).save_to_disk(tmp_path / "set")
    whole = plan(
        tmp_path, "", method="fedavg", models="causal", dataset=f"hf:{tmp_path / 'set'}",
        subset=None, options={"dataset": {"task": "language-model", "length": 6}},
    )  # fmt: skip
    assert whole.data.task.name == "language-model"
    assert Run(whole, rounds=1).lines[-1]["metrics"]["perplexity"]["all"] > 1


# --- several nets ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_clients_with_different_nets(saved, tmp_path):
    both = ",".join(str(saved(kind)[0]) for kind in ("bert", "gpt2"))
    made = plan(tmp_path, both)
    names = [made.info.architecture_of(client).name for client in (0, 1)]
    assert names == ["bert", "gpt2"]
    assert all(made.cost(each) > 1000 for each in made.info.architectures)  # on the meta device
    (line,) = Run(made, rounds=1).lines
    assert line["test_accuracy"] is not None


def test_the_size_of_a_causal_net(library, saved):
    (found,) = HFCausal().architectures(
        config=HFCausal.Config(names_or_paths=str(saved("gpt2")[0]))
    )
    sample = pf.datasets.SampleSpec((12,), "tokens", vocabulary=150, padding=0, task=LANGUAGE)
    parameters, flops = profile(found, sample, 11, 768)
    net = library.AutoModelForCausalLM.from_pretrained(saved("gpt2")[0])
    assert parameters == sum(p.numel() for p in net.parameters())
    assert flops > 0
