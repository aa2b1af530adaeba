"""Tests that the code on the pages runs: each plugin guide is installed and run as written."""

from __future__ import annotations

import importlib
import json
import re
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from doc_pages import DOCS, ROOT, blocks_of, commands_of
from slowness import quick
from typer.testing import CliRunner

import protofl as pf
from protofl.federation.jobs.jobs import StartTrial, Train
from protofl.hooks.discovery.kinds import KINDS, hooks_of
from protofl.hooks.discovery.registry import Registry
from protofl.testing import MethodContract, PayloadTransformContract, checks_of, run_checks, toy
from protofl.testing.toy_plugins import Prototypes
from protofl_cli.app import app

GUIDES = sorted(p.stem for p in (DOCS / "how-to/plugins").glob("*.md") if p.stem != "index")
SMALL = "--clients 2 --rounds 1 --batch-size 64 --feature-dim 16 --checkpoint-every off --workers 1"

PUBLIC_CHECKS = {
    "test_the_dry_run",
    "test_nothing_undeclared_leaves_a_client",
    "test_evaluation_changes_nothing",
    "test_terms_are_scalars_with_gradients",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install the package of a guide and return its plugins."""
    before = set(sys.modules)

    def install(guide):
        page = f"docs/how-to/plugins/{guide}.md"
        folder = tmp_path / "installed"
        about = folder / "my_package-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
        (folder / "my_package.py").write_text("\n".join(blocks_of(page, "python")))
        entries = []
        for line in "\n".join(blocks_of(page, "toml")).splitlines():
            group = re.fullmatch(r'\[project\.entry-points\."(.+)"\]', line)
            entries.append(f"[{group[1]}]" if group else line.replace('"', ""))
        (about / "entry_points.txt").write_text("\n".join(entries) + "\n")
        monkeypatch.syspath_prepend(str(folder))
        return [p for p in Registry().plugins() if p.distribution == "my-package"]

    yield install
    for name in {"my_package"} & (set(sys.modules) - before):
        del sys.modules[name]


@pytest.fixture
def type_in(data_dir, few, tmp_path, monkeypatch):
    """Return ``type_in(words, out)``, which runs a command of a page on little data."""

    monkeypatch.chdir(tmp_path)

    def run(words, out):
        small = []
        if words[0] == "run":
            small = [*SMALL.split(), "--data-dir", str(data_dir)]
            for option, value in (("--backend", "local"), ("--dataset", few), ("--out", str(out))):
                small += [option, value] if option not in words else []
        result = CliRunner().invoke(app, [*words, *small])
        assert result.exit_code == 0, f"protofl {' '.join(words)}\n{result.output}"
        return result.output

    return run


def figures(out):
    """Return the record of a run without timings."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(x).items() if k not in ("seconds", "time")} for x in lines]


def test_there_is_a_guide_for_each_kind():
    assert set(GUIDES) == set(KINDS) - {"reproduction"}  # it has a page of its own


@pytest.mark.parametrize("kind", quick(GUIDES, "dataset", "method", "metric", "model-group"))
def test_a_guide_can_be_followed(kind, package, type_in, tmp_path):
    plugin, *_ = package(kind)
    assert plugin.kind == kind
    loaded = Registry().load(kind, plugin.name)
    assert (hooks_of(kind, loaded) or kind == "command") and loaded.__doc__
    commands = list(commands_of(blocks_of(f"docs/how-to/plugins/{kind}.md", "bash")))
    assert any(words[0] == "run" for words in commands)
    # The page of methods also has a class in a file, which no entry point names.
    commands = [words for words in commands if not any("shrink.py" in word for word in words)]
    for number, words in enumerate(commands):
        used = plugin.name in re.split(r"[\s=,]", " ".join(words))
        assert used or kind == "command", words
        again = ["--no-dry-run"] if words[0] == "run" and number else []
        type_in([*words, *again], tmp_path / f"run{number}")


def loaded_from(package, kind):
    plugin, *_ = package(kind)
    return Registry().load(kind, plugin.name)


@pytest.mark.slow
def test_the_guides_method_takes_the_median(package, data_dir, few, tmp_path):
    method = loaded_from(package, "method")()
    values = ([1.0, 5.0], [2.0, 6.0], [900.0, 7.0])
    uploads = {
        i: pf.Payload(prototypes=torch.tensor([v]), classes=torch.tensor([1]))
        for i, v in enumerate(values)
    }
    found = method.server_aggregate(SimpleNamespace(num_classes=3), uploads)
    assert found["classes"].tolist() == [1] and found["prototypes"].tolist() == [[2.0, 6.0]]

    result = pf.run(
        "proto-median",
        models="cnn4",
        dataset=few,
        clients=2,
        rounds=2,
        batch_size=64,
        backend="local",
        data_dir=data_dir,
    )
    assert set(result.record[0]["loss_terms"]) == {"ce"}
    assert set(result.record[1]["loss_terms"]) == {"ce", "align"}
    assert result.record[1]["download_floats"] > result.record[0]["download_floats"] == 0


def test_the_guides_partitioner_deals_all_rows_in_falling_shares(package):
    partitioner = loaded_from(package, "partitioner")
    labels, notes = np.arange(500) % 5, []
    given = (labels, 4, 10, np.random.default_rng(0), partitioner.Config(ratio=0.5), notes)
    parts = partitioner().partition(*given)
    assert sorted(np.concatenate(parts).tolist()) == list(range(500))
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] >= 10 and len(notes) == 1
    with pytest.raises(pf.UsageError, match="too few"):
        partitioner().partition(labels, 60, *given[2:])


def test_the_guides_transform_bounds_rows(package):
    transform = loaded_from(package, "payload-transform")
    P = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    client = SimpleNamespace(config=transform.Config(bound=1.0))
    generator = transform().upload_payload(client)
    next(generator)
    with pytest.raises(StopIteration) as end:
        generator.send(pf.Payload(prototypes=P, counts=torch.ones(3)))
    sent = end.value.value
    assert torch.allclose(sent["prototypes"], torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    assert set(sent) == {"prototypes", "counts"} and P[0, 0] == 3


@pytest.mark.slow
def test_the_guides_encoding_keeps_what_a_transform_promises(package):
    package("payload-transform")
    signs = Registry().load("payload-transform", "signs")
    found = run_checks(type("Chosen", (PayloadTransformContract,), {"plugin": signs}))
    assert not [finding for finding in found if finding.outcome == "failed"]
    assert not any(finding.why for finding in found if finding.check == "it_does_something")


@pytest.mark.slow
def test_the_guides_averaging_method_trains(package, data_dir, few):
    package("method")
    method = importlib.import_module("my_package").Averaging
    here = {"clients": 2, "rounds": 1, "batch_size": 64, "feature_dim": 8, "backend": "local"}
    result = pf.run(method, models="cnn4", dataset=few, data_dir=data_dir, **here)
    assert 0 <= result.summary["final_test_accuracy"] <= 1
    with pytest.raises(pf.UsageError, match="one architecture"):
        pf.run(method, models="htcnn8", dataset=few, data_dir=data_dir, **here)


@pytest.mark.slow
def test_the_guides_method_with_public_data_keeps_its_contract(package):
    package("method")
    method = importlib.import_module("my_package").PublicMean
    checks = {c: None for c in checks_of(MethodContract) if c not in PUBLIC_CHECKS}
    found = run_checks(type("Chosen", (MethodContract,), {"plugin": method, **checks}))
    assert len(found) == len(PUBLIC_CHECKS)
    assert {f.outcome for f in found} == {"passed"}, [f.why for f in found]


def test_the_guides_data_set_reads_its_file(package, tmp_path):
    package("dataset")
    images = importlib.import_module("my_package").InAFile
    assert images().cache_key(tmp_path) == "in-a-file"
    data = toy.make_images(toy.MIXED)
    np.savez(tmp_path / "images.npz", x=data.x.numpy(), y=data.y.numpy())
    assert images().cache_key(tmp_path).startswith("in-a-file-")
    assert len(images().decode(tmp_path).y) == len(data.y)


def test_the_guides_engine_reads_what_a_loss_receives(package, tmp_path):
    package("engine")
    constants_of = importlib.import_module("my_package").constants_of

    class Asks:
        """An engine that trains nothing."""

        answers = []

        @pf.hookimpl
        def train(self, job):
            self.answers.append(constants_of(job))
            return {}

    extra = {("method", "toy"): Prototypes, ("engine", "asks"): Asks}
    plan = toy.make_plan("toy", tmp_path, extra=extra, engine="asks")
    host = toy.WatchedPool(plan).host
    host.handle(StartTrial(0))
    data = toy.make_images(toy.MIXED)
    sent = pf.Payload(prototypes=data.x.new_zeros(1, 8), classes=data.y.new_zeros(1))
    for blob in (b"", sent.to_bytes()):
        host.handle(Train(0, 0, blob=blob))
    assert Asks.answers == [{"toy": []}, {"toy": ["table", "known"]}]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", quick(["sgd", "adam"], "adam"))
def test_the_guides_engine_learns_as_eager_does(optimizer, package, type_in, tmp_path):
    package("engine")
    for engine in ("optim", "eager"):
        words = f"run fedproto --models htcnn8 --engine {engine} --optimizer {optimizer} --clip 1"
        type_in([*words.split(), "--no-dry-run"], tmp_path / engine)
    (own,), (reference,) = figures(tmp_path / "optim"), figures(tmp_path / "eager")
    assert own["train_loss"] == pytest.approx(reference["train_loss"], rel=1e-4)
    assert own["test_accuracy"] == pytest.approx(reference["test_accuracy"], abs=0.01)


@pytest.mark.slow
def test_the_guides_backend_gives_the_same_numbers(package, type_in, tmp_path):
    package("backend")
    for backend in ("multi", "local"):
        words = f"run fedproto --models htcnn8 --backend {backend} --no-dry-run"
        type_in(words.split(), tmp_path / backend)
    assert figures(tmp_path / "multi") == figures(tmp_path / "local")


PYTHON = [
    page
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    if blocks_of(page := path.relative_to(ROOT).as_posix(), "python")
    and path.parent.name != "plugins"
]


def test_pages_with_python_are_found():
    assert len(PYTHON) >= 10 and PYTHON[0] == "README.md"


@pytest.mark.slow
@pytest.mark.parametrize("page", quick(PYTHON, "docs/how-to/use-from-python.md"))
def test_python_on_other_pages_runs(page, data_dir, few, monkeypatch):
    if page.endswith("use-trackers.md"):
        pytest.importorskip("tensorboard")
    run, runs, few_clients = pf.run, [], {"clients": 2, "rounds": 2, "batch_size": 64}
    always = {**few_clients, "feature_dim": 16, "backend": "local", "data_dir": data_dir}
    always["dry_run"] = False

    def small(method=None, *, models="htcnn8", **options):
        if options.get("resume"):
            runs.append((method, models))
            return run(**{"backend": "local", **options})
        own = models if "dataset" in options else "htcnn8"
        found = run(method, models=own, **{"dataset": few, **options, **always})
        runs.append((method, models))
        return found

    monkeypatch.setattr(pf, "run", small)
    in_here = {"at_once": 0, "data_dir": data_dir, "backend": "local"}
    monkeypatch.setattr(pf, "reproduce", partial(pf.reproduce, **in_here))
    sweep, one = pf.sweep, {"trials": 1, "rounds": 1, "dataset": few, "dry_run": False}
    monkeypatch.setattr(pf, "sweep", lambda *a, **o: sweep(*a, **o | always | one, at_once=0))
    blocks = blocks_of(page, "python")
    assert blocks
    for code in blocks:
        exec(compile(code, page, "exec"), {"__name__": "page"})
    wanted = sum(code.count("pf.run(") for code in blocks)
    assert len(runs) == wanted
    for _, models in runs:
        assert Registry().find("model-group", models)
