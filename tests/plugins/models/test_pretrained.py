"""Tests of pretrained nets: weights, images, frozen blocks, features that are computed once."""

from __future__ import annotations

from copy import deepcopy

import pytest
import safetensors.torch
import torch
import torchvision.models as tv

import protofl as pf
from protofl.backends import Host, Plan
from protofl.hooks.models.architecture import unset_model
from protofl.testing.equality import Run, assert_equal_runs
from protofl_plugins.models.frozen import Frozen

NET = "shufflenet_v2_x0_5"
SAMPLE = pf.datasets.SampleSpec((3, 32, 32))
MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


@pytest.fixture(scope="module")
def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return tv.get_model(NET).eval()


@pytest.fixture(scope="module")
def file(net, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / f"{NET}.safetensors"
    safetensors.torch.save_file(net.state_dict(), path)
    return path


@pytest.fixture
def build(groups):
    def made(names=NET, dim=1024, **options):
        group = groups["torchvision"]
        (found,) = group.architectures(config=type(group).Config(names=names, **options))
        return found.build(SAMPLE, 10, dim)

    return made


def pixels(count=4):
    return torch.randint(256, (count, 3, 32, 32), generator=torch.Generator().manual_seed(0))


def as_published(net, images):
    """Return the features of torchvision's own net, with images prepared as by torchvision."""
    x = (images / 255 - MEAN[:, None, None]) / DEVIATION[:, None, None]
    whole = deepcopy(net)
    whole.fc = torch.nn.Identity()
    with torch.no_grad():
        return whole(x)


@pytest.mark.parametrize("options", [{}, {"freeze": 3}, {"freeze": "all", "projection": False}])
def test_features_are_those_of_the_published_net(build, net, file, options):
    model, images = build(weights=file, **options).eval(), pixels()
    with torch.no_grad():
        found = model.features(images / 127.5 - 1)
    assert torch.allclose(found, as_published(net, images), atol=1e-5)


def test_a_frozen_net_is_followed_by_a_trained_layer_to_k(build, net, file):
    model = build(weights=file, freeze="all", dim=16)
    assert [*dict(model.named_parameters())] == [
        "extractor.2.weight", "extractor.2.bias", "head.weight", "head.bias",
    ]  # fmt: skip
    images = pixels()
    wanted = as_published(net, images) @ model.extractor[2].weight.T + model.extractor[2].bias
    assert torch.allclose(model.features(images / 127.5 - 1), wanted, atol=1e-5)


def test_copies_share_what_is_frozen(build, file):
    a, b = (build(weights=file, freeze="all") for _ in range(2))
    nets = [m.extractor[0]._shared.on(torch.device("cpu")) for m in (a, b, deepcopy(a))]
    assert nets[0] is nets[1] is nets[2]
    assert not any(p.requires_grad for p in nets[0].parameters())


def test_a_net_that_is_first_built_without_weights_has_them(groups, net, tmp_path):
    """Worker processes start with such a net."""
    path, group = tmp_path / "weights.safetensors", groups["torchvision"]
    safetensors.torch.save_file(net.state_dict(), path)
    (found,) = group.architectures(config=type(group).Config(names=NET, weights=path, freeze="all"))
    model = unset_model(found, SAMPLE, 10, 1024)
    state = model.extractor[0]._shared.any[1].state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in net.state_dict().items()
               if not name.startswith("fc."))  # fmt: skip


def plan(data_dir, few, file, **given):
    options = {"weights": str(file), **given.pop("options", {})}
    return Plan.make(
        {
            "method": "fedproto", "models": f"torchvision:{NET}", "dataset": few, "clients": 2,
            "rounds": 2, "device": "cpu", "backend": "local", "feature_dim": 16, **given,
            "options": {"models": options}, "partition": "iid", "data_dir": data_dir,
        }
    )  # fmt: skip


FROZEN = {"freeze": "all", "keep_features": True}


def frozen_state(model):
    """Return {name: tensor} of the frozen parts of a model."""
    return {
        f"{name}.{key}": tensor.clone()
        for name, module in model.named_modules() if isinstance(module, Frozen)
        for key, tensor in module._shared.on(torch.device("cpu")).state_dict().items()
    }  # fmt: skip


@pytest.mark.parametrize("blocks", [0, 4, "all"])
def test_only_the_other_blocks_are_trained(blocks, few, file, tmp_path):
    made = plan(tmp_path, few, file, options={"freeze": blocks})
    first = Host(made).client(0).model
    fixed, free = frozen_state(first), {k: v.clone() for k, v in first.state_dict().items()}
    last = Run(made, rounds=1).host.client(0).model
    assert all(torch.equal(fixed[k], v) for k, v in frozen_state(last).items())
    assert not any(torch.equal(free[k], v) for k, v in last.named_parameters())
    parts = {0: (), 4: ("conv1.", "stage2.0.", "stage2.1."), "all": ("conv", "stage")}
    names = [n for n in safetensors.torch.load_file(file) if n.startswith(parts[blocks])]
    assert len(fixed) == len(names) + len(("factor", "shift"))


@pytest.mark.parametrize("engine", ["vmapped", "cuda-graphs"])
def test_engines_train_a_frozen_net_alike(engine, few, file, tmp_path):
    runs = [
        Run(plan(tmp_path, few, file, options=FROZEN, lr=0.001, engine=name), rounds=1)
        for name in ("eager", engine)
    ]
    assert_equal_runs(runs[1], runs[0], 1e-4)


@pytest.mark.slow
def test_a_run_with_kept_features_resumes_and_predicts(few, file, tmp_path):
    given = {
        "models": f"torchvision:{NET}", "dataset": few, "clients": 2, "partition": "iid",
        "rounds": 2, "feature_dim": 16, "data_dir": tmp_path, "lr": 0.05, "backend": "local",
        "set": {f"models.{key}": value for key, value in {"weights": str(file), **FROZEN}.items()},
    }  # fmt: skip
    pf.run("fedproto", **given, out=tmp_path / "whole")
    pf.run("fedproto", **{**given, "rounds": 1}, out=tmp_path / "half")
    pf.run("fedproto", **given, out=tmp_path / "half", resume=True)
    whole, loaded = (pf.load_run(tmp_path / name) for name in ("whole", "half"))
    last = loaded.rows_of(0)[-1]["client_accuracies"]
    assert last == whole.rows_of(0)[-1]["client_accuracies"]
    assert "models.weights" in loaded.config["files"]
    rows = loaded.plan.split(0).test(0)
    predicted = loaded.predict(0, loaded.plan.data.x[rows])  # from images
    accuracy = (predicted == loaded.plan.data.y[rows]).double().mean().item()
    assert accuracy == pytest.approx(last["0"])
    weights = sum(f.stat().st_size for f in loaded.folder.rglob("*.safetensors"))
    assert weights < 4 * 8 * (1024 + 10) * 16  # the net has a million weights


def test_kept_features_are_those_of_an_evaluation(few, file, tmp_path):
    made = plan(tmp_path, few, file, options=FROZEN)
    client, raw = Host(made).client(0), plan(tmp_path, few, file, options={"freeze": "all"})
    other = Host(raw).client(0)
    part, size = other.model.extractor[0], other.architecture.eval_batch
    wanted = torch.cat([part(x) for x in other.train.chunks(size)])
    assert torch.equal(client.train.inputs(), wanted) and wanted.shape[1] == 1024
    assert torch.equal(client.train_features()[0], other.train_features()[0])
    assert client.forward_flops() == 2 * (1024 * 16 + 16 * 10) < other.forward_flops()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"freeze": "all", "weights": None}, "freeze=all needs pretrained weights"),
        ({"weights": "default", "keep_features": True}, "keep_features needs freeze=all"),
        ({"weights": "nowhere"}, "nowhere is not a file"),
        ({"names": f"{NET},resnet18", "weights": "FILE"}, "one file for 2 nets"),
        ({"weights": "FOLDER", "names": "resnet18"}, "has no resnet18.safetensors"),
    ],
)
def test_options_that_contradict(groups, file, options, message):
    places = {"FILE": file, "FOLDER": file.parent}
    given = {key: places.get(value, value) for key, value in options.items()}
    group = groups["torchvision"]
    with pytest.raises(pf.UsageError, match=message):
        group.architectures(config=type(group).Config(**{"names": NET, **given}))


def cut(weights, path):
    path.write_bytes(safetensors.torch.save(weights)[:-50])


def pickled(weights, path):
    torch.save(weights, path)


def changed(change):
    def write(weights, path):
        safetensors.torch.save_file({k: v for k, v in change(dict(weights)).items()}, path)

    return write


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (cut, "is not a safetensors file"),
        (pickled, "is not a safetensors file"),
        (changed(lambda w: w | {"conv1.0.weight": torch.zeros(24, 1, 3, 3)}),
         r"conv1.0.weight has the shape \[24, 1, 3, 3\], and the net has \[24, 3, 3, 3\]"),
        (changed(lambda w: w | {"conv6.weight": torch.zeros(1)}), "conv6.weight is unknown"),
        (changed(lambda w: w | {"conv1.1.bias": torch.full((24,), torch.nan)}), "has NaN"),
        (changed(lambda w: {k: v for k, v in w.items() if k != "conv1.1.bias"}),
         "conv1.1.bias is missing"),
        (changed(lambda w: {f"module.{k}": v for k, v in w.items()}),
         "conv1.0.weight is missing\nremove 'module.' from the names"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit(write, message, build, net, tmp_path):
    write(net.state_dict(), tmp_path / "weights")
    with pytest.raises(pf.UsageError, match=message):
        build(weights=tmp_path / "weights")


def test_more_blocks_than_there_are(build, file):
    with pytest.raises(pf.UsageError, match=r"freeze=99: shufflenet_v2_x0_5 has \d+ blocks"):
        build(weights=file, freeze=99)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "fml"}, "fml trains a second model on the samples, and keep_features"),
        ({"augment": True}, "--augment changes images in each pass"),
    ],
)
def test_runs_that_need_the_images(given, message, few, file, tmp_path):
    with pytest.raises(pf.UsageError, match=message):
        Run(plan(tmp_path, few, file, options=FROZEN, **given), rounds=1)


def test_frozen_nets_are_pretrained(groups):
    config = type(groups["torchvision"]).Config
    assert config(names=NET, freeze=2).weights == "default"
    assert config(names=NET, freeze=0).weights is None


def test_an_error_of_a_weights_file_says_nothing_of_payloads(tmp_path):
    (tmp_path / "weights.safetensors").write_bytes(b"garbage")
    with pytest.raises(pf.UsageError) as error:
        pf.run(
            "fedproto",
            models="torchvision:shufflenet_v2_x0_5",
            rounds=1,
            clients=2,
            out=tmp_path / "run",
            set={"models.weights": tmp_path / "weights.safetensors"},
        )
    assert error.value.what.startswith("weights=") and "sends" not in str(error.value)
