"""Hooks that end the program, and hooks that never end: the run fails and names them."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
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
    """The alarm of a limit that nothing else in a run comes near to."""
    signal.setitimer(signal.ITIMER_REAL, 0.01, LIMIT)


def hangs():
    soon()
    while True:
        try:
            time.sleep(0.01)
        except Exception:  # a hook that catches all errors is no obstacle
            pass


def sleeps():
    soon()
    time.sleep(1000)


def method(hook, what):
    """A method that does something in a hook on client 1 (or on the server) in round 1."""

    def due(client=None, server=None):
        return (server or client).round == 1 and (client is None or client.id == 1)

    class Misbehaves:
        terms = {"ce": "cross-entropy"}

        @pf.hookimpl
        def before_training(self, client):
            return {"due": due(client=client)}

        @pf.hookimpl
        def local_loss(self, batch, output, given):
            if hook == "local_loss" and given["due"]:
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
    "local_loss": "local_loss, client 1, round 1",
    "upload_payload": "upload_payload, client 1, round 1",
    "server_aggregate": "server_aggregate, round 1",
    "inference": "inference, client 1, evaluation of round 1",
}


@pytest.fixture
def fails(few, tmp_path):
    """Runs a method and returns the error's text; one round is finished."""

    def run(plugin, **options):
        options = {**QUICK, "dataset": few, "data_dir": tmp_path / "data", **options}
        with pytest.raises(pf.RunFailure) as caught:
            pf.run(plugin, out=tmp_path / "r", dry_step=False, **options)
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
        r"upload_payload, client 1, round 1: no end after 10 s \(--job-limit\) in process (\d+) ",
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
    assert ("--on-lost-client skip" in said) == (hook in ("local_loss", "upload_payload"))
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@alarm
def test_a_hook_that_never_returns_where_clients_train_together(fails):
    """The engine tries again by itself what an error ended."""
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
    assert said.startswith(f"{PLACES[hook]}: memory ran out (")
    assert "--batch-size" in said and "--client-store disk" in said


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
    assert said.startswith(f"{job} of client 1 in round 1: memory ran out (MemoryError)\n")


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
    """An engine, say, that repeats in another way what failed."""
    start = time.monotonic()
    with pytest.raises(Late, match="it: no end"):
        with time_limit(0.05, "it"):
            try:
                time.sleep(10)
            except Overtime:
                time.sleep(10)
    assert time.monotonic() - start < 8


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
