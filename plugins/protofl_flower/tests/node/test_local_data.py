"""Tests of nodes with their own data: equal to a simulation of the same split; hostile answers."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from fake_grid import RUN, FakeTransport, lines, same_state
from runtime_toys import install
from safetensors import safe_open
from sklearn.datasets import load_digits
from slowness import quick

import protofl as pf
from protofl_flower import backend
from protofl_flower.deployment.node_export import export_client
from protofl_flower.deployment.node_process import settings_text
from protofl_flower.node.host import Node
from protofl_flower.node.local_data import LocalData
from protofl_flower.node.policy import Policy, plan_here
from protofl_flower.node_data import remote_data
from protofl_flower.protocol.transport import Deployment, RemoteNode
from protofl_flower.server import data_sizes, node_pool, polling
from protofl_flower.server.data_sizes import LARGEST, ask_data_sizes

FORM = {"sample": "1x8x8", "classes": "10"}
QUICK = {"models": "toy", "architectures": "1,0,1", "batch_size": 32, "rounds": 4}
QUICK |= {"local_epochs": 1, "device": "cpu", "progress": False}
QUICK |= {"on_lost_client": "skip"}
NODES = [
    RemoteNode("clinic", "a", (0,)),
    RemoteNode("hospital", "b", (1,)),
    RemoteNode("practice", "c", (2,)),
]


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    install(monkeypatch)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write different files for three nodes, and a folder with the same data, already split."""
    folder = tmp_path_factory.mktemp("files")
    digits = load_digits()
    x = (digits.images[:, None] * 15).astype(np.uint8)
    y = digits.target.astype(np.int64)
    # The clinic: its own test part, few classes, its own names of labels.
    rows = np.flatnonzero(y < 4)[:90]
    own = np.array([2, 0, 3, 1])[y[rows]]  # its label 2 is our 0, and so on
    np.savez(
        folder / "clinic.npz", x_train=x[rows[:60]], y_train=own[:60], x_test=x[rows[60:]],
        y_test=own[60:], classes=["one", "three", "zero", "two"],
    )  # fmt: skip
    # The hospital: one part of data that are already split.
    parts = [np.arange(600, 640), np.arange(640, 700), np.arange(700, 900), np.arange(900, 950)]
    write_split(folder / "hospital", [(x[p], y[p]) for p in parts])
    # The practice: no test part.
    np.savez(folder / "practice.npz", x_train=x[1000:1075], y_train=y[1000:1075])
    practice = own_data(folder, "c").load(FORM, 3)
    train, test = (rows.numpy() for rows in practice.split[2])
    names = {"one": 1, "three": 3, "zero": 0, "two": 2}
    mapped = np.array([*names.values()])[own]
    whole = [(x[rows[:60]], mapped[:60]), (x[rows[60:]], mapped[60:])]
    whole += [(x[p], y[p]) for p in parts[2:]]
    whole += [(x[1000 + train], y[1000 + train]), (x[1000 + test], y[1000 + test])]
    write_split(folder / "all", whole)
    return folder


def write_split(folder, parts):
    """Write split data in the format of PFLlib: a training and a test file for each client."""
    for part, pairs in (("train", parts[::2]), ("test", parts[1::2])):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for client, (x, y) in enumerate(pairs):
            np.savez(folder / part / f"{client}.npz", x=x, y=y)
    (folder / "config.json").write_text(json.dumps({"num_classes": 10}))


def tables(files):
    return {
        "a": {
            "dataset": f"npz:{files}/clinic.npz",
            "labels": {"one": "1", "3": "2", "zero": 0, "1": "3"},
        },
        "b": {"dataset": f"pfllib:{files}/hospital", "part": 1},
        "c": {"dataset": f"npz:{files}/practice.npz", "seed": 7},
    }


def own_data(files, key, **more):
    clients = next([*remote.clients] for remote in NODES if remote.key == key)
    return LocalData.read({**tables(files)[key], **more}, clients, files / "cache")


def nodes_of(tmp_path, files, **more):
    found = {}
    for remote in NODES:
        folder = tmp_path / remote.name
        folder.mkdir(exist_ok=True)
        settings = {"clients": [*remote.clients], "data_dir": str(files / "cache")}
        settings["data"] = {**tables(files)[remote.key], **more}
        found[remote.key] = Node(folder, settings)
    return found


def deployed(nodes, fates=None, federation=NODES, method="fedproto", **options):
    """Run on the nodes' own data through a fake grid; return the result and the grid."""
    transport = FakeTransport(nodes)
    transport.fates = fates or {}
    token = backend.DEPLOYMENT.set(Deployment(transport, federation, RUN))
    pace = {"backend.poll": 1e-6, "backend.patience": 0} | options.pop("set", {})
    given = {"dataset": "nodes", "options": {"dataset": FORM}, "set": pace}
    try:
        options = backend.with_data_sizes({**given, **options})
        return pf.run(method, backend="flower", **options), transport
    finally:
        backend.DEPLOYMENT.reset(token)


def simulated(files, out, method="fedproto", **options):
    given = {"dataset": f"pfllib:{files}/all", "data_dir": files / "cache", "backend": "local"}
    return pf.run(method, out=out, **QUICK | given | options)


@pytest.mark.slow
def test_nodes_with_own_data_equal_a_simulation_of_data_split_alike(tmp_path, files):
    found, transport = deployed(nodes_of(tmp_path, files), out=tmp_path / "deployed", **QUICK)
    local = simulated(files, tmp_path / "local")
    assert lines(local) == lines(found)
    same_state(local, found)
    assert local.summary["majority_accuracy"] == found.summary["majority_accuracy"]
    ours, theirs = (
        json.loads((run.folder / "partition.json").read_text()) for run in (local, found)
    )
    for table in ("train_counts", "test_counts", "hash"):
        assert ours[table] == theirs[table]
    # No node receives what another node reports.
    assert not [text for _, text, _ in transport.sent if '"told"' in text or "[40, " in text]


@pytest.mark.slow
@pytest.mark.parametrize("method", quick(["fedpkd", "fedmd"], "fedmd"))
def test_each_node_has_the_public_samples_in_a_file_of_its_own(method, tmp_path, files):
    """The server has the samples in another file, for its own training."""
    digits = load_digits()
    x = (digits.images[-60:, None] * 15).astype(np.uint8)
    for name in ("ours", "theirs"):
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=digits.target[-60:].astype(np.int64))
    options = QUICK | {"rounds": 2, "public": f"npz:{tmp_path}/ours.npz"}
    nodes = nodes_of(tmp_path, files, public=f"npz:{tmp_path}/theirs.npz")
    found, transport = deployed(nodes, method=method, out=tmp_path / "deployed", **options)
    local = simulated(files, tmp_path / "local", method, **options)
    assert lines(local) == lines(found)
    same_state(local, found)
    assert b"theirs.npz" not in b"".join(transport.left)


def content(path):
    """Return the metadata of an exported file, and its tensors as bytes."""
    with safe_open(path, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}
        about = file.metadata()
    return about, {key: (tensor.shape, tensor.numpy().tobytes()) for key, tensor in tensors.items()}


@pytest.mark.slow
def test_a_node_exports_its_client_as_the_server_would(tmp_path, files):
    """Client 1 trained last in round 2, and was evaluated last in round 3."""
    fates = {("b", 3, "before_upload"): 5}
    found, _ = deployed(nodes_of(tmp_path, files), fates, out=tmp_path / "deployed", **QUICK)
    local = simulated(files, tmp_path / "local", participants_from=found.folder)
    folder = tmp_path / "hospital"
    text = settings_text("x:1", [1], f"pfllib:{files}/hospital").replace("# part = 0", "part = 1")
    (folder / "node.toml").write_text(f"data_dir = {json.dumps(str(files / 'cache'))}\n" + text)
    export_client(folder, "", 1, tmp_path / "node.safetensors")
    pf.load_run(local.folder).export(1, tmp_path / "server.safetensors")
    ours, theirs = (content(tmp_path / f"{who}.safetensors") for who in ("node", "server"))
    assert ours == theirs
    assert any(name.startswith("received/") for name in ours[1])
    with pytest.raises(pf.UsageError, match="client 0 is not on this node"):
        export_client(folder, "", 0, tmp_path / "x.safetensors")
    with pytest.raises(pf.UsageError, match="no run first"):
        export_client(folder, "first", 1, tmp_path / "x.safetensors")
    for path in (folder / "runs" / RUN).glob("client-*"):
        path.unlink()
    with pytest.raises(pf.UsageError, match="was evaluated last is gone"):
        export_client(folder, RUN, 1, tmp_path / "x.safetensors")


@pytest.mark.slow
def test_withheld_sizes_change_no_result(tmp_path, files):
    told = deployed(nodes_of(tmp_path, files), out=tmp_path / "told", **QUICK)[0]
    for tell in ("sizes", "nothing"):
        nodes = nodes_of(tmp_path / "told", files, tell=tell)
        found, _ = deployed(nodes, out=tmp_path / tell, **QUICK)
        assert lines(told) == lines(found)
        guess = told.summary["majority_accuracy"] if tell == "sizes" else None
        assert found.summary.get("majority_accuracy") == guess
        record = json.loads((found.folder / "partition.json").read_text())
        assert record["train_counts"] == record["test_counts"] == []
        if tell == "nothing":
            assert record["majority"] == [[0, 0]] * 3
        run = pf.load_run(found.folder)
        assert run.summary == found.summary
        sizes = [len(train) for train, _ in run.plan.data.split]
        assert sizes == ([60, 200, 56] if tell == "sizes" else [0, 0, 0])


def asked_sizes(**more):
    return json.dumps({"run": RUN, "sizes": FORM, "jobs": [], **more})


@pytest.mark.parametrize("name", ["dp-prototypes", "dp-sgd"])
@pytest.mark.parametrize("tell", ["counts", "sizes", "nothing"])
def test_beside_a_transform_that_hides_samples_nothing_is_told(name, tell, tmp_path, files):
    node = nodes_of(tmp_path, files, tell=tell)["a"]
    answer, _ = node.respond(asked_sizes(transforms=["quantise", name, "unknown"]), [])
    if tell == "nothing":
        told = {"train": None, "test": None, "majority": None}
        assert json.loads(answer) == {"sizes": {"clients": {"0": told}}}
    else:
        failure = json.loads(answer)["failure"]
        assert f"{name} hides single samples, and this node tells exact numbers" in failure["what"]
        assert 'write tell = "nothing"' in failure["do"]
    # Others change nothing.
    assert "sizes" in json.loads(node.respond(asked_sizes(transforms=["quantise"]), [])[0])


def test_a_node_that_requires_privacy_and_tells_counts_does_not_start(tmp_path, files):
    settings = {"clients": [0], "data_dir": str(files / "cache"), "data": tables(files)["a"]}
    settings["policy"] = {"required": {"dp-sgd": {"epsilon": 8.0}}}
    with pytest.raises(pf.UsageError, match="dp-sgd hides single samples"):
        Node(tmp_path, settings)
    settings["data"] = {**settings["data"], "tell": "nothing"}
    Node(tmp_path, settings)


@pytest.mark.parametrize("names", [3, "dp-sgd", {"dp-sgd": 1}, [3], [["dp-sgd"]]])
def test_names_of_transforms_are_checked(names, tmp_path, files):
    node = nodes_of(tmp_path, files)["a"]
    failure = json.loads(node.respond(asked_sizes(transforms=names), [])[0])["failure"]
    assert "transforms is" in failure["what"]


def test_a_plan_with_privacy_is_refused_by_a_node_that_has_told_counts(
    tmp_path, files, monkeypatch
):
    """Before anything is told; or with the plan, if the server did not name the transforms."""
    pytest.importorskip("dp_accounting")
    options = QUICK | {"method": "lg-fedavg", "out": tmp_path / "run", "transforms": ["dp-sgd"]}
    options |= {"set": {"dp-sgd.epsilon": 8.0}, "on_lost_client": "stop"}
    with pytest.raises(pf.ProtoflError, match="dp-sgd hides single samples") as caught:
        deployed(nodes_of(tmp_path, files), **options)
    assert "clinic" in str(caught.value)
    assert not (tmp_path / "run").exists(), "no count was told"
    whole = data_sizes.ask_data_sizes

    def silent(*args, **options):
        return whole(*args, **{**options, "transforms": ()})

    monkeypatch.setattr(backend, "ask_data_sizes", silent)
    with pytest.raises(pf.ProtoflError, match="dp-sgd hides single samples"):
        deployed(nodes_of(tmp_path, files), **options)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == "", "no round was trained"


@pytest.mark.slow
def test_a_node_that_tells_nothing_can_claim_no_more_than_at_first(tmp_path, files, capsys):
    """Its first number may not be far above the others', and later ones not above the first."""
    there = nodes_of(tmp_path, files, tell="nothing")
    honest, factors = there["b"], {0: 10**5, 2: 2}

    def respond(text, blobs):
        answer, found = honest.respond(text, blobs)
        asked = json.loads(text).get("jobs")
        header = asked[0]["header"] if asked else {"kind": ""}
        if header["kind"] == "Train" and header["round"] in factors:
            payload = pf.Payload(pf.Payload.from_bytes(found[0]))
            payload["counts"] = payload["counts"] * factors[header["round"]]
            found = [payload.to_bytes()]
        return answer, found

    there["b"] = SimpleNamespace(respond=respond)
    options = QUICK | {"on_bad_upload": "skip", "progress": True, "out": tmp_path / "run"}
    run, _ = deployed(there, **options)
    assert [row.absent for row in run.record] == [{"1": "skipped"}, {}, {"1": "skipped"}, {}]
    said = capsys.readouterr().err
    assert "client 1 sent 'counts' with 20000000 samples; the usual number is 58" in said
    assert "client 1 sent 'counts' with 400 samples, it has at most 200 in round 3" in said


@pytest.mark.slow
def test_a_node_that_never_comes_and_one_that_is_lost_equal_their_simulation(tmp_path, files):
    federation = [*NODES, RemoteNode("island", "d", (3,))]
    fates = {("b", 1, "before_upload"): "lost after work", ("a", 2, "Evaluate"): 5}
    options = QUICK | {"architectures": "1,0,1,0", "out": tmp_path / "deployed"}
    found, _ = deployed(nodes_of(tmp_path, files), fates, federation, **options)
    assert [row.participants for row in found.record] == [3, 2, 3, 3]
    assert found.record[1].absent == {"1": "failed"}
    assert found.record[2].unscored == {"0": "left", "3": "left"}
    record = json.loads((found.folder / "partition.json").read_text())
    assert record["train_counts"][3] == [0] * 10
    parts = [
        np.load(files / f"all/{part}/{i}.npz") for i in (0, 1, 2, 0) for part in ("train", "test")
    ]
    write_split(tmp_path / "four", [(part["x"], part["y"]) for part in parts])
    local = simulated(
        files, tmp_path / "local", dataset=f"pfllib:{tmp_path}/four", architectures="1,0,1,0",
        participants_from=found.folder,
    )  # fmt: skip
    same_state(local, found)
    assert [row.test_accuracy for row in local.record] == [r.test_accuracy for r in found.record]


def test_a_missing_node_costs_its_patience_once(tmp_path, files, monkeypatch):
    now = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    for module in (data_sizes, node_pool, polling):
        monkeypatch.setattr(module, "time", clock)
    federation = [*NODES, RemoteNode("island", "d", (3,))]
    pace = {"backend.patience": 60, "backend.poll": 1}
    options = QUICK | {"architectures": "1,0,1,0", "rounds": 1, "set": pace}
    deployed(nodes_of(tmp_path, files), federation=federation, out=tmp_path / "deployed", **options)
    assert 60 <= now[0] < 65


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"validation": 0.1}, "--validation 0.1 draws from all clients' samples"),
        ({"measure": ["global-accuracy"]}, "--measure global-accuracy tests on samples of all"),
        ({"public": 50}, "cannot hold out 50 public samples"),
        ({"subset": 0.5}, "--subset takes a part before the data are split"),
        ({"sampling": "loss", "tell": "nothing"}, "--sampling loss needs the size of each"),
        ({"clients": 5, "architectures": []}, "split over 3 clients, not 5"),
    ],
)
def test_what_needs_all_samples_is_refused_before_training(options, words, tmp_path, files):
    own = {"tell": options.pop("tell")} if "tell" in options else {}
    with pytest.raises(pf.UsageError, match=words):
        deployed(nodes_of(tmp_path, files, **own), out=tmp_path / "x", **QUICK | options)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_sizes_that_are_told_sample_clients(tmp_path, files):
    sampled = QUICK | {"sampling": "size", "participation": 0.5}
    nodes = nodes_of(tmp_path, files, tell="sizes")
    found, _ = deployed(nodes, out=tmp_path / "deployed", **sampled)
    assert lines(simulated(files, tmp_path / "local", **sampled)) == lines(found)


def sizes(**client):
    told = {"train": [6] * 10, "test": [2] * 10, "majority": [2, 20], **client}
    return {"sizes": {"clients": {"0": told}}}


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([], "text is not a JSON object"),
        ({}, "it should have sizes, and has nothing"),
        ({"sizes": 3}, "its sizes should have clients, and has 3"),
        ({"sizes": {"clients": {}}}, "its clients should have 0, and has nothing"),
        ({"sizes": {"clients": {"0": {}, "1": {}}}}, "should have 0, and has '0', '1'"),
        ({"sizes": {"clients": {"\x1b[2J\n": {}}}}, r"has '\x1b[2J\n'"),
        (sizes(x=1), "client 0 should have train, test, majority"),
        (sizes(train=2**62), f"train is {2**62}, and should be from 1 to {LARGEST:,}"),
        (sizes(train=10**400), "train is a huge number"),
        (sizes(train=[LARGEST] * 10), "train is 100000000, and"),
        (sizes(train=[1] * 1_000_000), "train has 1000000 classes, and the federation has 10"),
        (sizes(train=[-1] * 10), "train is -1"),
        (sizes(train=[0] * 10), "train is 0, and should be from 1"),
        (sizes(train=[True] * 10), "train is True"),
        (sizes(train=1e300), "train is 1e+300"),
        (sizes(train="\x1b]0;x\x07" * 99), "train is ?]0;x?"),
        (sizes(test=20), "tells of train and test in two ways"),
        (sizes(majority=None), "majority is None"),
        (sizes(train=5, test=3, majority=None), "majority is None"),
        (sizes(majority=[3, 2]), "majority is 3 of 2"),
        (sizes(train=5, test=7, majority=[1, 2]), "has 7 test samples and guesses 2"),
        ({"failure": {"what": "\x1b[31mred\n" * 99, "error": "UsageError"}}, "clinic: ?[31mred"),
    ],
)
def test_a_hostile_answer_is_refused_in_a_line(sent, words):
    there = {"a": SimpleNamespace(respond=lambda *_: (json.dumps(sent), []))}
    with pytest.raises(pf.ProtoflError) as caught:
        place = Deployment(FakeTransport(there), NODES[:1], RUN)
        ask_data_sizes(place, FORM, backend.Flower.Config(patience=0, poll=1e-6), skip=True)
    text = caught.value.what
    assert words in text
    assert text.isprintable() and len(text) < 400


@pytest.mark.parametrize(
    ("key", "change", "words"),
    [
        ("a", {"labels": {}}, "label 'one' of this node is not a class of the federation"),
        (
            "a",
            {"labels": {"one": 1, "three": 3, "zero": 0, "two": 2, "ten": 2}},
            "has 'ten', which is not a label",
        ),
        ("a", {"part": 0}, "do not come split, and node.toml gives 1 clients parts"),
        ("a", {"dataset": "npz:/nowhere.npz"}, "no file /nowhere.npz"),
        ("b", {"part": 2}, "come split into 2 parts"),
        ("b", {"part": [0, 1]}, r"\[data\] part is \[0, 1\]"),
        ("b", {"part": -1}, r"\[data\] part is -1"),
        ("c", {"tell": "all"}, r"\[data\] tell is 'all'"),
        ("c", {"seed": True}, r"\[data\] seed is True"),
        ("c", {"shuffle": 1}, r"unknown setting \[data\] shuffle"),
    ],
)
def test_wrong_settings_of_a_nodes_data_are_refused(key, change, words, files):
    with pytest.raises(pf.UsageError, match=words):
        own_data(files, key, **change).sizes(FORM)


def test_labels_and_files_of_a_node_stay_in_its_log(tmp_path, files, capfd):
    nodes = nodes_of(tmp_path, files, labels={"one": 1})
    transport = FakeTransport(nodes)
    with pytest.raises(pf.UsageError, match="clinic: its own data do not fit the run"):
        place = Deployment(transport, NODES, RUN)
        ask_data_sizes(place, FORM, backend.Flower.Config(patience=0, poll=1e-6), skip=True)
    assert transport.left
    for planted in ("three", "zero", str(files), "npz"):
        assert not any(planted.encode() in part for part in transport.left), planted
    assert "label 'three' of this node is not a class" in capfd.readouterr().err


def test_data_of_another_form_are_refused(files):
    data = own_data(files, "c")
    with pytest.raises(
        pf.UsageError, match="has images 1×8×8, and the federation has images 3×8×8"
    ):
        data.sizes({"sample": "3x8x8", "classes": "10"})
    with pytest.raises(pf.UsageError, match="label '3' of this node is not a class"):
        data.sizes({"sample": "1x8x8", "classes": "3"})
    for wrong in ({"sample": "8xx8"}, {"classes": "1"}, {"classes": "a,a"}, {"classes": "9" * 9}):
        with pytest.raises(pf.UsageError):
            data.sizes(FORM | wrong)


def test_a_node_trains_on_its_own_data_alone(files):
    text = json.dumps({"method": "fedproto", "models": "htcnn8", "dataset": "digits"})
    with pytest.raises(
        pf.UsageError, match="data of its own, and the run is on the data set digits"
    ):
        plan_here(text, {}, Policy(), own_data(files, "a"))
    text = json.dumps({"method": "fedproto", "models": "htcnn8", "dataset": "nodes"})
    with pytest.raises(pf.UsageError, match="has no data of its own"):
        plan_here(text, {}, Policy())


def test_without_a_federation_the_data_set_says_what_to_do(tmp_path):
    with pytest.raises(pf.UsageError, match="is on the nodes of a federation"):
        pf.run("fedproto", dataset="nodes", options={"dataset": FORM}, out=tmp_path / "x", **QUICK)


def test_data_on_other_machines_have_no_preparation():
    told = [{"train": [3, 4], "test": [1, 1], "majority": [1, 2]}]
    sample = pf.datasets.SampleSpec((4,), "table")
    assert remote_data(sample, ["a", "b"], told).preparation is None
