"""Tests of classes, instances and ``FILE:CLASS`` in place of a plugin's name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from runtime_toys import request_of_program
from torch import nn

import protofl as pf
from protofl.runs.request.request import read_request
from protofl_plugins.methods.fedproto import FedProto
from protofl_plugins.models.mlp import MLPs

SOURCE = '''
import protofl as pf
from torch import nn


class MyMethod:
    """Sends prototypes, and nothing comes back."""

    @pf.hookimpl
    def upload_payload(self, client):
        return client.class_prototypes()


class Halves:
    """The first half of the rows, and the others."""

    @pf.hookimpl
    def partition(self, labels, num_clients):
        import numpy as np
        return np.array_split(np.arange(len(labels)), num_clients)


class Nets:
    """One small net."""

    kinds = ("table",)

    @pf.hookimpl
    def architectures(self):
        return [pf.models.Architecture("small", build)]


def build(sample, classes, width):
    extractor = nn.Sequential(nn.Linear(sample.shape[0], width), nn.ReLU())
    return pf.models.SplitModel(extractor, nn.Linear(width, classes), width)
'''


class Sends:
    """Uploads prototypes and downloads nothing."""

    @pf.hookimpl
    def upload_payload(self, client):
        return client.class_prototypes()


class Other:
    """A donor method with the hook `local_loss`."""

    terms = {"ce": "cross-entropy", "size": "the features' size"}

    @pf.hookimpl
    def local_loss(self, batch, output):
        ce = nn.functional.cross_entropy(output.logits, batch.y)
        return {"ce": ce, "size": output.features.square().mean()}


class Nets:
    """Nets of the widths that the instance is given."""

    kinds = ("table",)

    def __init__(self, widths=(4,)):
        self.widths = widths

    @pf.hookimpl
    def architectures(self):
        def build(width):
            def made(sample, classes, K):
                first = nn.Linear(sample.shape[0], width)
                extractor = nn.Sequential(first, nn.ReLU(), nn.Linear(width, K))
                return pf.models.SplitModel(extractor, nn.Linear(K, classes), K)

            return made

        return [pf.models.Architecture(f"net{width}", build(width)) for width in self.widths]


class Wraps:
    """Double the floating-point uploads."""

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client):
        payload = yield
        return {k: v * 2 if v.is_floating_point() else v for k, v in payload.items()}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "of_mine.py"
    path.write_text(SOURCE)
    yield path
    sys.modules.pop("of_mine", None)


def config(result):
    return json.loads((result.folder / "config.json").read_text())


def test_classes_stand_for_all_kinds(run):
    result = run(
        Sends,
        models=Nets,
        transforms=[Wraps],
        use={"local_loss": Other},
        partition=type("Whole", (), {"__doc__": "All to all.", "partition": deal}),
    )
    found = config(result)
    assert (found["method"], found["models"], found["partition"]) == ("sends", "nets", "whole")
    assert found["transforms"] == ["wraps"] and found["use"] == {"local_loss": "other"}
    assert result.record[0]["loss_terms"].keys() == {"other.ce", "other.size"}


@pf.hookimpl
def deal(self, labels, num_clients):
    return np.array_split(np.arange(len(labels)), num_clients)


def test_an_instance_keeps_what_it_was_given(run):
    result = run("local", models=Nets(widths=(3, 5)))
    assert config(result)["layout"].keys() == {"net3", "net5"}
    assert run("local", "plain", models=Nets()).record != result.record


def test_an_installed_class_is_its_name(run, same):
    by_class = run(FedProto, models=MLPs, seed=1)
    found = config(by_class)
    assert (found["method"], found["models"]) == ("fedproto", "mlp")
    assert found["classes"].keys() == {"dataset/arrays"}
    same(by_class, run("fedproto", "named", seed=1))


def test_a_class_called_as_an_installed_one_is_meant(run):
    Local = type("Local", (Sends,), {"__doc__": "Mine."})
    notes = []
    result = run(Local, progress=lambda e: notes.append(getattr(e, "text", "")))
    assert result.record[0]["upload_bytes"] > 0  # protofl's method uploads nothing
    assert config(result)["block"] == ["method/local@protofl"]
    assert "'local' is the class given, not the method of protofl" in notes


def test_two_classes_of_one_name_are_refused():
    one, two = (type("Twin", (Sends,), {}) for _ in range(2))
    with pytest.raises(pf.UsageError, match="two classes are called method/twin"):
        request_of_program({"method": one, "use": {"inference": two}})


def test_further_classes_may_be_named(run):
    result = run("local", classes=[Other], add=["other.size"])
    assert "other.size" in result.record[0]["loss_terms"]


def test_a_file_s_classes(run, file):
    result = run(f"{file}:MyMethod", models=f"{file}:Nets", partition=f"{file}:Halves", workers=0)
    found = config(result)
    assert found["method"] == "my-method"
    assert found["classes"]["model-group/nets"] == f"{file}:Nets"
    (own,) = (p for p in found["plugins"] if p["name"] == "my-method")
    assert own["distribution"] == "this program" and len(own["version"]) == 12
    given = {"config": result.folder / "config.json", "backend": "local", "progress": False}
    again = pf.run(**given, out=result.folder / "x")
    assert again.summary == result.summary


def test_a_file_s_donors_transforms_and_terms(file):
    file.write_text(SOURCE + "\n\nclass Loss(MyMethod):\n    terms = {'ce': 'x'}\n")
    typed = {
        "method": "local",
        "use": [f"inference={file}:MyMethod"],
        "add": [f"local_loss={file}:Loss.ce"],
        "class": [f"method/{file}:MyMethod"],
    }
    request = request_of_program(typed)
    assert request.options["use"] == {"inference": "my-method"}
    assert request.options["add"] == ["loss.ce"]
    assert request.options["classes"] == {
        "method/my-method": f"{file}:MyMethod",
        "method/loss": f"{file}:Loss",
    }


def test_names_with_arguments_stay():
    typed = {"method": "local", "dataset": "npz:a/b.npz", "models": "torchvision:resnet18"}
    options = request_of_program(typed).options
    assert options == typed
    with_argument = request_of_program({"method": "local", "models": "of_mine_data.py"}).options
    assert with_argument["models"] == "of_mine_data.py"


def test_a_file_may_have_the_name_of_an_installed_module(tmp_path):
    """Its folder is after NumPy's on the path, so torch does not import the file."""
    import numpy

    taken = tmp_path / "numpy.py"
    taken.write_text(SOURCE)
    request = request_of_program({"method": f"{taken}:MyMethod"})
    assert request.options["classes"] == {"method/my-method": f"{taken}:MyMethod"}
    assert sys.modules["numpy"] is numpy
    assert sys.path.index(str(tmp_path)) > max(
        i for i, folder in enumerate(sys.path) if (Path(folder) / "numpy").is_dir()
    )


def test_a_package_may_not_have_the_name_of_an_installed_one(tmp_path):
    inside = tmp_path / "json" / "method.py"
    inside.parent.mkdir()
    (inside.parent / "__init__.py").touch()
    inside.write_text(SOURCE)
    with pytest.raises(pf.UsageError, match="another installed package is called 'json'"):
        request_of_program({"method": f"{inside}:MyMethod"})


@pytest.mark.parametrize("key", ["class", "classes"])
def test_a_file_may_have_a_table_of_classes(file, key):
    pf.trust_code(file)
    table = {"method": "my-method", key: {"method/my-method": f"{file}:MyMethod"}}
    request = read_request({}, config=table)
    assert request.options["classes"] == {"method/my-method": f"{file}:MyMethod"}
    assert request.registry.find("method", "my-method").distribution == "this program"


def test_a_file_that_was_changed_is_loaded_again(file):
    request = request_of_program({"method": f"{file}:MyMethod"})
    assert request.options["method"] == "my-method"
    file.write_text(SOURCE.replace("class MyMethod", "class Another"))
    with pytest.raises(pf.UsageError, match="unknown class in"):
        request_of_program({"method": f"{file}:MyMethod"})
    assert request_of_program({"method": f"{file}:Another"}).options["method"] == "another"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"method": "nowhere.py:X"}, r"there is no file .*nowhere\.py"),
        ({"method": "no_such_module:X"}, "there is no module 'no_such_module'"),
        ({"method": "local", "classes": [3]}, "--class 3: no class"),
        ({"method": "local", "classes": ["local"]}, "--class local: no class"),
        ({"method": "local", "classes": [int]}, "int has no hook"),
    ],
)
def test_what_is_no_class(typed, words):
    with pytest.raises(pf.UsageError, match=words):
        request_of_program(typed)


def test_a_class_without_a_place_can_t_be_elsewhere(run):
    made = type("Made", (Sends,), {"__module__": "__main__", "__doc__": "In a notebook."})
    with pytest.raises(pf.UsageError, match="cannot see method/made") as caught:
        run(made, backend="process")
    assert "--backend local" in caught.value.do
    result = run(made, workers=2)  # auto: the process that has the class
    assert config(result)["classes"]["method/made"] == ""


def test_a_run_of_a_program_s_class_goes_on_with_it(run, tmp_path, same):
    made = type("Made", (Sends,), {"__module__": "__main__", "__doc__": "In a notebook."})
    whole = run(made, "whole", rounds=3)
    with pytest.raises(KeyboardInterrupt):
        run(made, rounds=3, progress=after_a_round)
    with pytest.raises(pf.UsageError, match="method/made was a class of another program") as caught:
        pf.run(resume=True, out=tmp_path / "run", progress=False)
    assert "protofl.run(CLASS" in caught.value.do
    on = pf.run(made, resume=True, out=tmp_path / "run", progress=False, backend="local")
    same(on, whole)


def after_a_round(event):
    if isinstance(event, pf.events.RoundDone):
        raise KeyboardInterrupt


def test_a_changed_file_is_told_when_a_run_goes_on(run, file, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(f"{file}:MyMethod", progress=after_a_round, backend="local")
    file.write_text(SOURCE + "\nCHANGED = True\n")
    notes = []
    on = {"resume": True, "out": tmp_path / "run", "backend": "local"}
    pf.run(**on, progress=lambda event: notes.append(str(event)))
    assert any("method my-method was" in note for note in notes)


@pytest.mark.slow
def test_a_file_s_class_in_workers(run, file, same):
    here = run(f"{file}:MyMethod", "here", models=f"{file}:Nets", backend="local")
    there = run(f"{file}:MyMethod", "there", models=f"{file}:Nets", backend="process", workers=2)
    same(here, there)
    same(run(Sends, "one", backend="local"), run(Sends, "two", backend="process", workers=1))
