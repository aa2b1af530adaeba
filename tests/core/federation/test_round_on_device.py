"""Tests of a round on a device: how often payloads are copied, and how often the program waits."""

from __future__ import annotations

from collections import Counter

import pytest
from runtime_toys import lines_of, make_plan, open_federation, without_times

import protofl.federation.clients.host
from protofl.hooks.transport.encoding import Codec
from protofl.hooks.transport.payload_validation import DownloadValidation, UploadValidation

CLIENTS = 4

RUNS = {
    "prototypes": {"method": "fedproto"},
    "weights": {"method": "fedavg"},
    "eight bits": {"method": "fedavg", "transforms": {"quantise": None}},
}


def counted_round(gpu, monkeypatch, options):
    """Return {place: copies and waits of it in the second round}."""
    counts = {}

    def watch(owner, name, place):
        real = getattr(owner, name)

        def call(*args, **kwargs):
            before = gpu.count("to host"), gpu.count("to device"), gpu.waits.total()
            result = real(*args, **kwargs)
            after = gpu.count("to host"), gpu.count("to device"), gpu.waits.total()
            names = ("to host", "to device", "waits")
            changes = (new - old for new, old in zip(after, before, strict=True))
            counts.setdefault(place, Counter()).update(
                calls=1, **dict(zip(names, changes, strict=True))
            )
            return result

        monkeypatch.setattr(owner, name, call)

    plan = make_plan(models="cnn4", clients=CLIENTS, rounds=2, device="simgpu", **options)
    federation = open_federation(plan)
    federation.round(0)
    watch(UploadValidation, "admit", "uploads")
    watch(DownloadValidation, "__call__", "downloads")
    watch(Codec, "pack", "packing")
    watch(protofl.federation.clients.host, "score", "scoring")
    row, _ = federation.round(1)
    assert row["participants"] == row["evaluated"] == CLIENTS
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_copies_and_waits_do_not_grow_with_keys(gpu, monkeypatch, options):
    counts = counted_round(gpu, monkeypatch, options)
    plain = "transforms" not in options
    # One copy and one wait for each upload: no number of it is read from the device.
    assert counts["uploads"] == Counter({"calls": 1, "to device": CLIENTS, "waits": CLIENTS})
    # Two stages send one download each, to all clients; its check waits once.
    downloads = 2 if plain else 2 * CLIENTS
    assert counts["downloads"] == Counter(
        {"calls": 2 * CLIENTS, "to device": downloads, "waits": downloads}
    )
    # One copy to the host for each upload, and for what is sent to all clients of a stage.
    if plain:
        packed = CLIENTS + 2
        assert counts["packing"] == Counter({"calls": packed, "to host": packed, "waits": packed})
    assert counts["scoring"] == Counter({"calls": CLIENTS, "to host": CLIENTS, "waits": CLIENTS})


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_rows_are_those_of_a_cpu(gpu, options):
    def rows(device):
        plan = make_plan(models="cnn4", clients=CLIENTS, device=device, **options)
        return without_times(lines_of(plan))

    for there, here in zip(rows("simgpu"), rows("cpu"), strict=True):
        for name in ("train_loss", "loss_terms", "extra"):  # may be rounded otherwise
            here[name] = pytest.approx(here[name], rel=1e-6)
        assert all(there[name] == here[name] for name in here), (there, here)
