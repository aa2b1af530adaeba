"""Search every byte that leaves a node, in runs of all methods, for private data."""

from __future__ import annotations

import json
import platform
import socket

import numpy as np
import pytest
import torch
from fake_grid import TWO, FakeTransport, deployed, node, run_on
from runtime_toys import GIVEN, install
from slowness import quick

import protofl as pf
from protofl.errors import Refused
from protofl.federation.jobs.jobs import StartTrial
from protofl.hooks.discovery.registry import Registry
from protofl.testing.donors import methods_to_run

OPTIONS = {k: v for k, v in GIVEN.items() if k != "backend"} | {
    "dry_run": False,
    "rounds": 2,
    "lr": 0.01,
}
OPTIONS |= {"on_lost_client": "skip", "progress": False}
MACHINE = "machine-7c21"


class Leaky:
    """A method that uploads samples in the form that models take."""

    uploads = {"row": "samples of the client"}

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload(row=client.train.inputs(slice(2)))


class LeakyStored:
    """A method that uploads samples with their stored values, as floats."""

    uploads = {"row": "samples of the client"}

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload(row=((client.train.inputs(slice(2)) / 2 + 0.5) * 255).round())


class Broken:
    """A method whose hook reads a missing file."""

    @pf.hookimpl
    def upload_payload(self, client):
        open("/srv/secret-5d0e/wards.csv")


@pytest.fixture
def there(tmp_path, monkeypatch):
    """Return a folder and nodes in it; the names of folder and machine are private."""
    install(monkeypatch)
    monkeypatch.setattr(socket, "gethostname", lambda: MACHINE)
    monkeypatch.setattr(platform, "node", lambda: MACHINE)
    folder = tmp_path / "node-41fe"
    folder.mkdir()
    made = {each.key: node(folder, each.key, GIVEN["data_dir"], classes=True) for each in TWO}
    return folder, made


def options_of(method):
    """Return the options that a method needs on the toys."""
    plugin = Registry().load("method", method)
    given = {}
    if getattr(plugin, "needs_public", False):
        given["public"] = 12
    return OPTIONS | given


def run(method, there, tmp_path, **options):
    """Run on the first model group that the method accepts; return the result and the grid."""
    for group in ("toy", "toy1", "widths:cnn4@1,0.5", "depths:cnn4@2,1", "resnet10"):
        try:
            given = options | {"models": group}
            return deployed(method, there, out=tmp_path / group.partition(":")[0], **given)
        except Refused:
            pass
    raise AssertionError(f"{method} takes no group")


def private(config):
    """Return {description: bytes that must not leave} for each client's samples and labels."""
    public = {"public": config["public"]} if config.get("public") else {}
    method = "ds-fl" if public else "fedproto"  # samples are the same for all other methods
    plan = pf.backends.Plan.make({**GIVEN, **public, "method": method})
    host = pf.backends.Host(plan)
    host.handle(StartTrial(0))
    split, found = plan.split(0), {}
    for client in range(plan.info.num_clients):
        record = host.client(client)
        for part, rows in (("train", split.train(client)), ("test", split.test(client))):
            rows = rows[:4]
            stored = plan.data.x[rows]
            prepared = getattr(record, part).inputs(slice(len(rows)))
            forms = {"stored": stored, "floats": stored.float(), "scaled": stored / 255}
            forms["prepared"] = prepared
            for form, x in forms.items():
                for number, row in enumerate(x):
                    found |= needles(f"client {client}, {part} {number}, {form}", row)
        labels = record.train.y
        found[f"client {client}, labels"] = labels.numpy().tobytes()
        found[f"client {client}, labels as bytes"] = labels.to(torch.uint8).numpy().tobytes()
    return found


def needles(name, row):
    """Return part of a sample as bytes, in all types in which it might be sent."""
    flat = row.flatten()
    part = flat[len(flat) // 3 : len(flat) // 3 + 16]
    assert len(part.unique()) > 4  # otherwise it would match everywhere
    if not part.is_floating_point():
        return {name: part.numpy().tobytes()}
    found = {f"{name}, {kind}": part.to(kind) for kind in (torch.float16, torch.bfloat16)}
    found = {key: value.view(torch.int16).numpy().tobytes() for key, value in found.items()}
    numbers = part.numpy().astype(np.float32)
    return found | {name: numbers.tobytes(), f"{name}, double": numbers.astype("<f8").tobytes()}


def words(folder):
    """Return strings that must not leave: paths and name of this machine, and tracebacks."""
    return [str(folder), folder.name, str(GIVEN["data_dir"]), MACHINE, "Traceback", 'File "']


def leaks(transport, result, folder):
    """Return the private strings and data that left the nodes."""
    config = json.loads((result.folder / "config.json").read_text())
    assert len(transport.left) > 8
    everything = b"\0".join(transport.left)
    found = {word for word in words(folder) if word.encode() in everything}
    return found | {name for name, data in private(config).items() if data in everything}


@pytest.mark.parametrize(
    "method",
    quick(
        [name for name in methods_to_run(Registry()) if name != "centralised"],  # it sends them
        *("fedavg", "fedpkd", "fedproto"),
    ),
)
def test_no_sample_and_no_place_leaves_a_node(method, tmp_path, there):
    folder, nodes = there
    result, transport = run(method, nodes, tmp_path, **options_of(method))
    assert not any(row.get("absent") for row in result.record)
    assert leaks(transport, result, folder) == set()


@pytest.mark.parametrize("method", [Leaky, LeakyStored])
def test_the_search_finds_a_sample(method, tmp_path, there):
    folder, nodes = there
    result, transport = run(method, nodes, tmp_path, **OPTIONS)
    form = {"Leaky": "prepared", "LeakyStored": "floats"}[method.__name__]
    found = leaks(transport, result, folder)
    assert {f"client {client}, train 0, {form}" for client in range(4)} <= found


@pytest.mark.parametrize("lost", ["skip", "stop"])
def test_an_error_leaves_without_places(lost, tmp_path, there):
    """If a hook fails on a file of the node, the error leaves without the file's path."""
    folder, nodes = there
    transport = FakeTransport(nodes)
    with pytest.raises(pf.RunFailure):
        run_on(transport, Broken, out=tmp_path / "1", **OPTIONS | {"on_lost_client": lost})
    everything = b"\0".join(transport.left)
    assert b"FileNotFoundError" in everything
    for word in [*words(folder), "/srv", "secret-5d0e"]:
        assert word.encode() not in everything, word
