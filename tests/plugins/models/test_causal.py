"""Tests of language models: next-token loss, perplexity, the group `causal`, and its runs."""

from __future__ import annotations

import math

import pytest
import torch
from slowness import quick

import protofl as pf
from protofl.errors import Refused
from protofl.hooks.discovery.registry import Registry
from protofl.testing.equality import Run, double_precision
from protofl_plugins.datasets.python_docs import PythonDocs
from protofl_plugins.metrics.perplexity import Perplexity
from protofl_plugins.models.causal import Causal
from protofl_plugins.shared.adapters import AdapterConfig

TASK = pf.datasets.Task("language-model")
V, L = 30, 8
SAMPLE = pf.datasets.SampleSpec((L,), "tokens", vocabulary=V, padding=0, task=TASK)


def texts():
    x = torch.randint(1, V, (5, L), generator=torch.Generator().manual_seed(0))
    for row, length in enumerate((8, 5, 2, 1)):
        x[row, length:] = 0
    return x


def labels_of(x):
    return (x[:, 1:] != 0).float()


def built(**options):
    (found,) = Causal().architectures(config=Causal.Config(width=16, heads=2, **options))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return found.build(SAMPLE, L - 1, 64).eval()


def losses_one_by_one(model, x):
    """Return −log p of each token but the first of each text, in a plain loop over prefixes."""
    net, losses = model.extractor.net, []
    for text in x.tolist():
        real = [token for token in text if token != 0]
        for place in range(1, len(real)):
            scores = net(torch.tensor([real[:place]]))[0, -1]
            p = [math.exp(float(s)) for s in scores]
            losses.append(-math.log(p[real[place]] / sum(p)))
    return losses


def figure(scores, labels):
    metric = Perplexity()
    return float(metric.value(metric.count(scores, labels)))


# --- loss, score and perplexity -------------------------------------------------------------------


def test_perplexity_is_that_of_a_plain_loop_without_padding():
    with double_precision(), torch.no_grad():
        model, x = built(), texts()
        losses = losses_one_by_one(model, x)
        scores = model(x)
        assert len(losses) == int(labels_of(x).sum()) == 7 + 4 + 1 + 0 + 7
        mean = sum(losses) / len(losses)
        assert float(TASK.loss(scores, labels_of(x))) == pytest.approx(mean, rel=1e-9)
        assert figure(scores, labels_of(x)) == pytest.approx(math.exp(mean), rel=1e-9)
        first = math.exp(-sum(losses[:7]) / 7)
        assert float(TASK.points(scores[:1], labels_of(x)[:1])) == pytest.approx(first, rel=1e-5)
        assert float(TASK.outcomes(scores[:1])) == pytest.approx(1 / first, rel=1e-9)


def test_a_uniform_net_has_the_perplexity_of_its_vocabulary():
    model, x = built(), texts()
    with torch.no_grad():
        model.extractor.net.tokens.weight.zero_()
        scores = model(x)
    assert figure(scores, labels_of(x)) == pytest.approx(V, rel=1e-6)
    guess = TASK.guess(labels_of(x), labels_of(x), vocabulary=V)
    assert float(TASK.points(scores, labels_of(x))) == pytest.approx(guess, rel=1e-5)
    assert guess == 4 / V  # the text of one token has nothing to predict


def test_a_text_without_next_tokens_counts_nothing():
    y = torch.zeros(2, 3)
    assert float(TASK.points(torch.zeros(2, 3), y)) == 0
    assert float(TASK.loss(torch.zeros(2, 3), y)) == 0
    assert math.isnan(figure(torch.zeros(2, 3), y))


def test_no_token_sees_later_ones():
    model, x = built(), texts()[:1]
    with torch.no_grad():
        before = model(x)
        x[0, 5] = x[0, 5] % (V - 1) + 1
        after = model(x)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


# --- data -----------------------------------------------------------------------------------------


def docs(**options):
    return PythonDocs().decode(config=PythonDocs.Config(**options), data_dir=None)


def test_passages_as_texts_to_predict():
    data, classes = docs(task="language-model"), docs()
    assert torch.equal(data.x, classes.x) and torch.equal(data.y, classes.y)
    assert torch.equal(data.targets, (data.x[:, 1:] != 0).float())
    assert data.about_outputs() == "next tokens" and len(data.output_names) == 31
    keys = {
        PythonDocs().cache_key(config=PythonDocs.Config(task=task), data_dir=None)
        for task in ("classification", "language-model")
    }
    assert len(keys) == 2


def test_arrays_of_ids_and_other_samples():
    ids, y = texts().numpy(), [0, 1, 0, 1, 0]
    made = pf.datasets.dataset_from_arrays([(ids, y, "ours")], padding=0, task="language-model")
    assert torch.equal(made.targets, labels_of(texts())) and made.classes == ["0", "1"]
    with pytest.raises(pf.UsageError, match="needs texts of two tokens or more, got rows of 3"):
        rows = [(torch.rand(4, 3).numpy(), [0, 1, 0, 1], "ours")]
        pf.datasets.dataset_from_arrays(rows, task="language-model")


# --- runs -----------------------------------------------------------------------------------------

GIVEN = {
    "models": "causal", "dataset": "python-docs", "clients": 2, "rounds": 2, "partition": "iid",
    "subset": 80, "backend": "local", "engine": "eager", "device": "cpu", "lr": 0.01,
}  # fmt: skip
SMALL = {"models": {"width": 16, "heads": 2}, "dataset": {"task": "language-model", "length": 12}}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def plan(data_dir, method, own=None, **given):
    options = {**SMALL, **given.pop("options", {}), **({method: own} if own else {})}
    return pf.backends.Plan.make(
        {"method": method, **GIVEN, "data_dir": data_dir, **given, "options": options}
    )


def able():
    """Return our methods that take language models, {name: class}."""
    registry = Registry()
    ours = [p.name for p in registry.plugins("method") if p.distribution == "protofl"]
    loaded = {name: registry.load("method", name) for name in ours}
    return {n: m for n, m in loaded.items() if "language-model" in getattr(m, "tasks", ())}


METHODS = able()
ADAPTERS = [
    n
    for n, method in METHODS.items()
    if issubclass(getattr(method, "Config", object), AdapterConfig)
]


@pytest.mark.parametrize("method", quick([*METHODS], "fedavg", "flora"))
def test_methods_learn_next_tokens(method, data_dir):
    """The recorded perplexity falls below that of guessing, and is that of the clients' tokens."""
    ranks = "4" if method == "fedex-lora" else "2,4"
    own = {"ranks": ranks, "alpha": 16} if method in ADAPTERS else None
    more = {"optimizer": "sgd", "lr": 0.1} if method in ("pfedme", "scaffold") else {}
    run = Run(plan(data_dir, method, own, **more), rounds=2)
    figures = [line["metrics"]["perplexity"] for line in run.lines]
    vocabulary = run.plan.info.sample.vocabulary
    assert figures[1]["all"] < figures[0]["all"] < 1.05 * vocabulary
    assert set(figures[1]["clients"]) == {"0", "1"}
    if method in ADAPTERS:
        net = run.host.client(1).model.extractor
        assert {name.split(".")[-2] for name in net.sizes} == {"query", "value"}
        assert net.scale == 16 / 4
        sent = pf.Payload.from_bytes(run.pool.uploads(1)[1])
        assert not [key for key in sent.keys() if key.startswith("head")]


@pytest.mark.slow
def test_the_recorded_perplexity_is_that_of_the_clients_nets(data_dir):
    run = Run(plan(data_dir, "local"), rounds=1)
    losses = []
    for client in range(2):
        state = run.host.client(client)
        with torch.no_grad():
            losses += losses_one_by_one(state.model.eval(), state.test.inputs())
    found = run.lines[-1]["metrics"]["perplexity"]["all"]
    assert found == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-4)


def test_what_does_not_fit_is_refused(data_dir):
    with pytest.raises(Refused, match="fedproto does not work for language-model") as error:
        plan(data_dir, "fedproto")
    assert "fedavg" in error.value.near
    with pytest.raises(pf.UsageError, match="text is for classification") as error:
        plan(data_dir, "fedavg", models="text", options={"models": {}})
    assert error.value.near.startswith("model groups for language-model: causal, hf-causal")
    with pytest.raises(pf.UsageError, match="causal is for language-model"):
        plan(data_dir, "fedavg", options={"dataset": {}})
    with pytest.raises(pf.UsageError, match="width=16 does not divide into"):
        plan(data_dir, "fedavg", options={"models": {"width": 16, "heads": 3}})


def test_tables_are_no_texts(tmp_path):
    (tmp_path / "t.csv").write_text("a,label\n1,x\n2,y\n3,x\n4,y\n")
    with pytest.raises(pf.UsageError, match="needs texts as token ids, and a table has numbers"):
        plan(
            tmp_path,
            "fedavg",
            dataset=f"csv:{tmp_path / 't.csv'}",
            subset=None,
            options={"dataset": {"task": "language-model"}},
        )
