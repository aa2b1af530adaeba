"""Tests of hooks that end the program or never end: the run fails and names the hook."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from runtime_toys import install, lines_of, make_plan, train
from slowness import quick
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.errors import Late, Overtime, plugin_location
from protofl.system.machine import time_limit

QUICK = {"models": "cnn4", "clients": 3, "rounds": 3, "batch_size": 64, "feature_dim": 16}
LIMIT = 100
alarm = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no alarm signal here")


def ends():
    sys.exit("enough")


def soon():
    """Trigger the alarm now; its interval is a limit that nothing else in a run reaches."""
    signal.setitimer(signal.ITIMER_REAL, 0.01, LIMIT)


def hangs():
    soon()
    while True:
        try:
            time.sleep(0.01)
        except Exception:  # the limit also stops a hook that catches all errors
            pass


def sleeps():
    soon()
    time.sleep(1000)


def method(hook, what):
    """Return a method that calls ``what`` in a hook of client 1 (or the server) in round 1."""

    def due(client=None, server=None):
        return (server or client).round == 1 and (client is None or client.id == 1)

    class Misbehaves:
        terms = {"ce": "cross-entropy"}

        @pf.hookimpl
        def before_training(self, client):
            return {"due": due(client=client)}

        @pf.hookimpl
        def local_loss(self, batch, output, constants):
            if hook == "local_loss" and constants["due"]:
                what()
            return {"ce": cross_entropy(output.logits, batch.y)}

        @pf.hookimpl
        def upload_payload(self, client):
            if hook == "upload_payload" and due(client=client):
                what()
            return pf.Payload(client.class_prototypes())

        @pf.hookimpl
        def server_aggregate(self, server, uploads):
            if hook == "server_aggregate" and due(server=server):
                what()
            return {}

        @pf.hookimpl
        def inference(self, client, x):
            if hook == "inference" and due(client=client):
                what()
            return client.head(client.features(x))

    return Misbehaves


PLACES = {
    "local_loss": "local_loss, client 1, round 2",
    "upload_payload": "upload_payload, client 1, round 2",
    "server_aggregate": "server_aggregate, round 2",
    "inference": "inference, client 1, evaluation of round 2",
}
OF_A_CLIENT = ("local_loss", "upload_payload", "inference")
"""Client hooks: if one fails, the round can continue without its client."""


@pytest.fixture
def fails(few, tmp_path):
    """Return a function that runs a method and returns the error's text after one round."""

    def run(plugin, **options):
        options = {**QUICK, "dataset": few, "data_dir": tmp_path / "data", **options}
        with pytest.raises(pf.RunFailure) as caught:
            pf.run(plugin, out=tmp_path / "r", dry_run=False, **options)
        assert len((tmp_path / "r" / "metrics.jsonl").read_text().splitlines()) == 1
        return str(caught.value)

    return run


@pytest.mark.parametrize("hook", PLACES)
def test_sys_exit_in_a_hook(fails, hook):
    assert fails(method(hook, ends)).startswith(f"{PLACES[hook]}: it called sys.exit('enough')")


HANGING = """
import time
import protofl as pf

class Hangs:
    "Sleeps in an upload of round 1."

    @pf.hookimpl
    def upload_payload(self, client):
        if client.round == 1 and client.id == 1:
            time.sleep(1000)
        return pf.Payload()
"""


@pytest.mark.slow
def test_a_hook_that_never_returns_in_a_worker(fails, tmp_path, monkeypatch):
    about = tmp_path / "installed" / "hangs-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hangs\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[protofl.methods]\nhangs = hangs_module:Hangs\n")
    (tmp_path / "installed" / "hangs_module.py").write_text(HANGING)
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    said = fails("hangs", backend="process", workers=2, job_limit=10)
    found = re.match(
        r"upload_payload, client 1, round 2: no end after 10 s \(--job-limit\) in process (\d+) ",
        said,
    )
    assert found and int(found[1]) != os.getpid()


def test_sys_exit_where_clients_train_together(fails):
    said = fails(method("local_loss", ends), engine="vmapped")
    assert "it called sys.exit('enough')" in said and "local_loss, client" in said


@pytest.mark.parametrize(
    ("hook", "what"), [*((hook, hangs) for hook in PLACES), ("upload_payload", sleeps)]
)
@alarm
def test_a_hook_that_never_returns(fails, hook, what):
    said = fails(method(hook, what), job_limit=LIMIT)
    assert said.startswith(f"{PLACES[hook]}: no end after 100 s (--job-limit) in process ")
    assert ("--on-lost-client skip" in said) == (hook in OF_A_CLIENT)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@alarm
def test_a_hook_that_never_returns_where_clients_train_together(fails):
    """The engine itself repeats work that ended in an error."""
    said = fails(method("local_loss", hangs), engine="vmapped", job_limit=LIMIT)
    assert "no end after " in said and "local_loss, client" in said


def no_memory():
    raise MemoryError


def no_memory_of_torch():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nMore of it")


def no_memory_on_the_cpu():
    torch.empty(1 << 60)


@pytest.mark.parametrize(
    ("hook", "what"),
    [
        *((hook, no_memory) for hook in PLACES),
        ("local_loss", no_memory_of_torch),
        ("server_aggregate", no_memory_on_the_cpu),
    ],
)
def test_memory_that_runs_out_names_client_and_hook_and_what_to_do(fails, hook, what):
    said = fails(method(hook, what))
    on_device = what is no_memory_of_torch
    memory, store = ("memory of the device", "memory") if on_device else ("memory", "disk")
    assert said.startswith(f"{PLACES[hook]}: {memory} ran out (")
    assert "--batch-size" in said and f"--client-store {store}" in said


@pytest.mark.parametrize("job", ["train", "evaluate"])
def test_memory_that_runs_out_beside_hooks_names_the_job(fails, monkeypatch, job):
    def full(host, asked, *given):
        if (asked.client, asked.round) == (1, 1):
            raise MemoryError
        return whole(host, asked, *given)

    name = {"train": "_training", "evaluate": "_evaluate"}[job]
    whole = getattr(pf.backends.Host, name)
    monkeypatch.setattr(pf.backends.Host, name, full)
    said = fails("local", backend="local")
    assert said.startswith(f"{job} of client 1 in round 2: memory ran out (MemoryError)\n")


def test_a_plugin_that_ends_the_program_before_a_run(tmp_path):
    class Ends:
        @pf.hookimpl
        def requires(self, run):
            sys.exit(0)

    with pytest.raises(pf.RunFailure, match=r"method/ends, requires: it called sys.exit\(0\)"):
        pf.run(Ends, models="cnn4", out=tmp_path / "r")


@alarm
def test_within_its_limit_nothing_happens():
    with time_limit(5, "it"):
        pass
    time.sleep(0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@alarm
def test_who_has_set_the_alarm_clock_keeps_it():
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with time_limit(0.01, "it"):
            time.sleep(0.2)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGALRM, before)


@alarm
def test_another_thread_can_not_be_interrupted():
    ended = threading.Event()

    def work():
        with time_limit(0.01, "it"):
            time.sleep(0.1)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended.is_set()


@alarm
def test_what_goes_on_all_the_same_is_interrupted_again():
    """An example is an engine that repeats failed work in another way."""
    slept = []
    with pytest.raises(Late, match="it: no end"):
        with time_limit(0.05, "it"):
            try:
                slept.append(time.sleep(10))
            except Overtime:
                slept.append(time.sleep(10))
    assert not slept


@alarm
def test_what_no_hook_names_is_named_by_its_job():
    with pytest.raises(Late, match=r"train of client 3: no end after 0\.05 s") as caught:
        with time_limit(0.05, "train of client 3"):
            time.sleep(1)
    assert isinstance(caught.value.__cause__, Overtime)


def test_an_error_below_an_engine_is_not_placed_in_the_engine():
    engine = {"__name__": "protofl_plugins.engines.own", "__package__": "protofl_plugins.engines"}
    other = {"__name__": "mine", "__package__": ""}
    for module in (engine, other):
        name = f"{module['__name__']}.py"
        exec(compile("def fail():\n    raise ValueError", name, "exec"), module)
        with pytest.raises(ValueError) as caught:
            module["fail"]()
        found = plugin_location(caught.value).partition(":")[0]
        assert found == ("mine.py" if module is other else Path(__file__).name)


# --- with --on-bad-upload skip and --on-lost-client skip ------------------------------------------


class Bare(BaseException):
    """An exception that `except Exception` does not catch."""


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")


def raising(error):
    def do(sent):
        raise error

    return do


def with_prototypes(make):
    def do(sent):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that some layouts are in beta
            return {**sent, "prototypes": make()}

    return do


def with_key(key):
    return lambda sent: {**sent, key: torch.ones(2)}


UPLOADS = {
    "sparse_coo tensor": with_prototypes(lambda: torch.eye(4, 6).to_sparse()),
    "sparse_csr tensor": with_prototypes(lambda: torch.eye(4, 6).to_sparse_csr()),
    "qint8": with_prototypes(lambda: torch.quantize_per_tensor(torch.ones(4), 1, 0, torch.qint8)),
    "meta tensor": with_prototypes(lambda: torch.ones(4, 6, device="meta")),
    "_mkldnn tensor": with_prototypes(lambda: torch.ones(4, 6).to_mkldnn()),
    "nested tensor": with_prototypes(lambda: torch.nested.nested_tensor([torch.ones(2)] * 2)),
    "the str 'x'": with_prototypes(lambda: "x"),
    "a bytes": with_prototypes(lambda: b"x"),
    "a list of 1": with_prototypes(lambda: [1.0]),
    "numpy.ndarray": with_prototypes(lambda: torch.ones(3).numpy()),
    "the float 1": with_prototypes(lambda: 1.0),
    "a dict of 0": with_prototypes(dict),
    "builtin_function": with_prototypes(lambda: print),
    "returned 3 as": with_key(3),
    "returned None as": with_key(None),
    "returned (1,) as": with_key((1,)),
    "returned b'a' as": with_key(b"a"),
    r"returned '\ud800' as": with_key("\ud800"),
    "returned nothing": lambda sent: None,
    "4,611,686,018,427,387,968 bytes": with_prototypes(lambda: torch.ones(1).expand(2**60)),
    "with 1e+30, larger than 1e+09": with_prototypes(lambda: torch.full((4, 6), 1e30)),
    "with 3e+38, larger than 1e+09": with_prototypes(lambda: torch.full((4, 6), 3e38)),
}
"""{text in the note: an upload that is not plain tensors, or would overflow float32}."""

FAILURES = {
    r"ValueError: a\x1b[31mb": raising(ValueError("a\x1b[31mb")),
    "GeneratorExit": raising(GeneratorExit()),
    "Bare": raising(Bare()),
    "Mute: (its text cannot be read)": raising(Mute()),
    "it called sys.exit(3)": raising(SystemExit(3)),
}
"""{text in the note: how a client's hook fails}."""


def faulty(changes, hook="upload_payload"):
    """Return a method in which client 2 applies one of ``changes`` per round, from round 1."""

    def change(client, found):
        due = client.id == 2 and 1 <= client.round <= len(changes)
        return changes[client.round - 1](found) if due else found

    class Faulty(method("", None)):
        uploads = {"prototypes": "means", "classes": "whose", "counts": "how many"}

        @pf.hookimpl
        def before_training(self, client):
            return change(client, {}) if hook == "before_training" else {}

        @pf.hookimpl
        def local_loss(self, batch, output, constants):
            return {"ce": cross_entropy(output.logits, batch.y)}

        @pf.hookimpl
        def upload_payload(self, client):
            sent = {**client.class_prototypes()}
            return change(client, sent) if hook == "upload_payload" else sent

    return Faulty


@pytest.fixture
def skips(tmp_path, monkeypatch):
    """Return a function that trains and returns the result and the notes about client 2."""
    install(monkeypatch)

    def run(plugin, rounds, **options):
        told, skip = [], {"on_bad_upload": "skip", "on_lost_client": "skip"}
        options = skip | options | {"rounds": rounds, "dry_run": True}
        result = train(plugin, tmp_path / "r", progress=told.append, **options)
        texts = [event.text for event in told if isinstance(event, pf.events.Note)]
        return result, [text for text in texts if "client 2" in text]

    return run


@pytest.mark.parametrize("lost", quick(["skip", "stop"], "stop", always=True))
def test_uploads_that_are_no_plain_tensors_are_skipped_by_name(skips, lost):
    """The note has the reason also if only bad uploads may be skipped, and no lost clients."""
    result, notes = skips(faulty([*UPLOADS.values()]), len(UPLOADS) + 2, on_lost_client=lost)
    middle = result.record[1:-1]
    assert [dict(row.absent) for row in middle] == [{"2": "skipped"}] * len(UPLOADS)
    assert not result.record[0].absent and not result.record[-1].absent
    for words, note in zip(UPLOADS, notes, strict=True):
        assert words in note and "it is left out" in note


@pytest.mark.parametrize(
    ("hook", "engine"),
    quick(
        itertools.product(["upload_payload", "before_training"], ["eager", "vmapped"]),
        ("before_training", "eager"),
        always=True,
    ),
)
def test_a_hook_that_fails_makes_its_client_absent(skips, hook, engine):
    result, notes = skips(faulty([*FAILURES.values()], hook), len(FAILURES) + 2, engine=engine)
    middle = result.record[1:-1]
    assert [dict(row.absent) for row in middle] == [{"2": "failed"}] * len(FAILURES)
    for number, (words, row, note) in enumerate(zip(FAILURES, middle, notes, strict=True), 2):
        assert row.failures["2"].startswith(f"{hook}, client 2, round {number}: ")
        assert row.failures["2"].endswith(words)
        assert f"{row.failures['2']}; the round goes on without the client" == note
    assert not result.record[-1].absent


def test_a_client_that_failed_is_what_it_was_before(skips, tmp_path):
    """The result equals that of a run that replays the other participants."""
    result, _ = skips(faulty([raising(ValueError())]), 3)
    again = train(
        faulty([]), tmp_path / "again", rounds=3, participants_from=result.folder, dry_run=False
    )
    for key in ("test_accuracy", "loss_terms", "client_accuracies"):
        assert [row[key] for row in again.record] == [row[key] for row in result.record]


def test_a_transform_that_spoils_an_upload_is_named():
    class Passes:
        @pf.hookimpl(wrapper=True)
        def upload_payload(self, client):
            return (yield)

    class Spoils:
        @pf.hookimpl(wrapper=True)
        def upload_payload(self, client):
            sent = yield
            return {**sent, "prototypes": "spoilt"} if client.round == 1 else sent

    plan = make_plan("fedproto", transforms={"passes": Passes, "spoils": Spoils}, rounds=2)
    with pytest.raises(pf.RunFailure, match=r"spoils\.upload_payload returned 'prototypes' as the"):
        lines_of(plan)
    plan = make_plan(faulty([with_prototypes(list)]), transforms={"passes": Passes}, rounds=2)
    with pytest.raises(
        pf.RunFailure, match=r"main\.upload_payload returned 'prototypes' as a list"
    ):
        lines_of(plan)


def test_what_a_hook_changes_in_torch_is_restored(skips):
    changes = [
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_device("meta"),
        lambda: torch.autocast("cpu").__enter__(),
    ]

    def after(do):
        return lambda sent: (do(), sent)[1]

    before = torch.get_default_dtype()
    result, _ = skips(faulty([after(do) for do in changes]), len(changes) + 1)
    assert not any(row.absent for row in result.record)
    assert torch.get_default_dtype() == before and torch.ones(1).device.type == "cpu"
