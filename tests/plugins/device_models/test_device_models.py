"""Tests of the built-in device models: devices, presence of clients, and the content of traces."""

from __future__ import annotations

import math

import numpy as np
import pytest

import protofl as pf
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.members import choose
from protofl.testing import DeviceModelContract
from protofl_plugins.device_models.tiers import TIERS

REGISTRY = Registry()
FIGURES = ("flops", "download", "upload", "latency")


def devices(text, **options):
    return choose(REGISTRY, "device-model", text, options)


def device(choice, client=0, clients=40, seed=3):
    stream = pf.numpy_stream(seed, "world", client)
    return choice.call("device", client=client, num_clients=clients, seed=seed, generator=stream)


def presence(choice, seconds, clients=40, seed=3):
    return choice.call("presence", num_clients=clients, seconds=seconds, seed=seed)


# --- drawn devices --------------------------------------------------------------------------------


def test_devices_of_one_kind():
    given = {"gflops": 2, "download": 8, "upload": 4, "latency": 30}
    assert device(devices("uniform", **given)) == dict(
        zip(FIGURES, (2e9, 8e6, 4e6, 0.03), strict=True)
    )
    spread = devices("uniform", **given, spread=10)
    logs = np.log10([[device(spread, c)[f] for f in FIGURES] for c in range(400)])
    middle = np.log10([2e9, 8e6, 4e6, 0.03])
    assert (np.abs(logs - middle) <= 1).all()
    assert (np.abs(logs.mean(0) - middle) < 0.12).all()
    assert (np.abs(logs.std(0) - 1 / math.sqrt(3)) < 0.06).all()


def test_tiers_are_drawn_by_their_weights():
    alike = devices("tiers", spread=0)
    found = [tuple(device(alike, c, 600).values()) for c in range(600)]
    counts = {name: found.count(figures) for name, figures in TIERS.items()}
    assert sum(counts.values()) == 600
    for name, share in (("phones", 0.6), ("laptops", 0.3), ("servers", 0.1)):
        assert abs(counts[name] / 600 - share) < 0.07
    only = devices("tiers", spread=0, phones=0, laptops=0)
    assert {tuple(device(only, c).values()) for c in range(20)} == {TIERS["servers"]}
    with pytest.raises(pf.UsageError, match="all weights are 0"):
        device(devices("tiers", phones=0, laptops=0, servers=0))


def test_a_tier_is_spread_by_logarithms():
    phones = devices("tiers", laptops=0, servers=0, spread=0.5)
    found = np.array([[device(phones, c)[f] for f in FIGURES] for c in range(500)])
    logs = np.log(found / np.array(TIERS["phones"]))
    assert (np.abs(logs[:, :3].std(0) - 0.5) < 0.06).all()
    assert (np.abs(logs[:, :3].mean(0)) < 0.08).all()
    assert (logs[:, 3] == 0).all()


# --- presence -------------------------------------------------------------------------------------


def slowly(seconds, clients, seed, available, slot):
    """Return presence and its next change, found slot by slot and client by client."""

    def is_there(number, client):
        return pf.numpy_stream(seed, "there", number).random(clients)[client] < available

    first = int(seconds // slot)
    there, until = [], []
    for client in range(clients):
        now, number = is_there(first, client), first + 1
        while is_there(number, client) == now:
            number += 1
        there.append(now)
        until.append(number * slot)
    return there, until


@pytest.mark.parametrize("seconds", [0.0, 59.9, 60.0, 1234.5])
def test_clients_come_and_go_in_slots(seconds):
    choice = devices("tiers", available=0.4, slot=60)
    there, until = presence(choice, seconds, clients=5)
    assert (there.tolist(), until.tolist()) == slowly(seconds, 5, 3, 0.4, 60)


def test_everybody_always_is_there_by_default():
    assert presence(devices("tiers"), 0.0) is None
    assert presence(devices("uniform"), 0.0) is None


def test_as_many_are_there_as_is_said():
    there, _ = presence(devices("uniform", available=0.3, slot=60), 7.0, clients=20_000)
    assert abs(there.mean() - 0.3) < 0.02


def test_a_moment_at_which_somebody_changes_is_over_when_it_has_come():
    """A waiting server looks at exactly these moments, which are rounded."""
    for slot in (0.3, 0.7, 60.1):
        choice, seconds = devices("uniform", available=0.5, slot=slot), 0.0
        for _ in range(100):
            there, until = presence(choice, seconds, clients=2)
            before, seconds = seconds, float(until.min())
            assert seconds > before
            changed = presence(choice, seconds, clients=2)[0] != there
            assert changed[until == seconds].all()


@pytest.mark.parametrize("option", ["gflops", "download", "upload", "slot"])
def test_rounds_without_a_finite_length_are_refused(option):
    with pytest.raises(pf.UsageError, match=option):
        devices("uniform", **{option: 1e-320})


# --- traces ---------------------------------------------------------------------------------------

CSV = """# measured in June
gflops,download,upload,latency

10,6,2,50
70.5, 100 ,20,20
4e3,1000,1000,0
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "devices.csv"
    path.write_text(CSV, encoding="utf-8-sig")
    return path


class TestTrace(DeviceModelContract):
    """Run `protofl check` on ``trace``; tests/contract checks the other device models."""

    plugin = "trace"
    options = {"assign": "random"}

    def setup_method(self):
        super().setup_method()
        (self.folder / "devices.csv").write_text(CSV)
        type(self).argument = str(self.folder / "devices.csv")


def test_a_trace_s_devices(path):
    choice = devices(f"trace:{path}")
    rows = [tuple(device(choice, c, 3).values()) for c in range(3)]
    assert rows == [(1e10, 6e6, 2e6, 0.05), (70.5e9, 1e8, 2e7, 0.02), (4e12, 1e9, 1e9, 0.0)]
    with pytest.raises(pf.UsageError, match="has 3 devices, and there are 4 clients") as caught:
        device(choice, 0, 4)
    assert "--clients 3" in caught.value.do and "assign=random" in caught.value.do


def test_devices_drawn_from_a_trace(path):
    choice = devices(f"trace:{path}", assign="random")
    found = [device(choice, c, 90)["flops"] for c in range(90)]
    assert all(found.count(flops) > 15 for flops in (1e10, 70.5e9, 4e12))
    assert found == [device(choice, c, 90)["flops"] for c in range(90)]
    assert found[:50] == [device(choice, c, 50)["flops"] for c in range(50)]
    assert found != [device(choice, c, 90, seed=4)["flops"] for c in range(90)]


HEAD = "gflops,download,upload,latency\n"
BAD = {
    "nothing": ("", "has the columns none"),
    "no device": (HEAD, "lists no device"),
    "an unknown column": ("gflops,downlaod\n", "has the columns gflops, downlaod"),
    "a column twice": (HEAD.replace("upload", "gflops"), "has the columns gflops, .*, gflops"),
    "too few values": (f"{HEAD}1,2,3\n", "line 2: '1,2,3'"),
    "no number": (f"{HEAD}1,2,3,4\n\nfast,2,3,4\n", "line 4: 'fast,2,3,4'"),
    "0": (f"{HEAD}1,0,3,4\n", "line 2: download is 0"),
    "below 0": (f"{HEAD}1,2,3,-4\n", "line 2: latency is -4"),
    "endless": (f"{HEAD}1e-320,2,3,4\n", "line 2: gflops is .*, expected 1e-09 … 1e"),
    "infinite": (f"{HEAD}1,2,inf,4\n", "line 2: upload is inf"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_a_trace_cannot_hold(tmp_path, what):
    text, words = BAD[what]
    path = tmp_path / "devices.csv"
    path.write_text(text)
    with pytest.raises(pf.UsageError, match=words) as caught:
        device(devices(f"trace:{path}"), 0, 1)
    assert str(path) in caught.value.what
