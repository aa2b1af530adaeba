"""Attacks on the noise of a deployed run, by its server."""

from __future__ import annotations

import base64
import json
import random

import pytest
import torch
from fake_grid import RUN, THREE, FakeTransport, node, run_on
from runtime_toys import DATA, install

import protofl as pf
from protofl.system.secret_stream import SecretStream, derived_key
from protofl_flower.node import noise_secret
from protofl_flower.node.noise_secret import node_secret
from protofl_privacy.dp_prototypes import noisy_sums_and_counts

pytest.importorskip("dp_accounting")

BASE = {"models": "kept", "dataset": "tiny", "partition": "iid", "clients": 3, "rounds": 2}
BASE |= {"drop": ["align"], "transforms": ["dp-prototypes"], "device": "cpu", "progress": False}
BASE |= {"data_dir": DATA, "record_uploads": True}
NOISE = 3.0
SETTINGS = {"dp-prototypes.noise": NOISE, "dp-prototypes.least": 0.0, "dp-prototypes.clip": 4.0}


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    install(monkeypatch)
    # Always the same secrets: two noises of a count can round to one number.
    monkeypatch.setattr(noise_secret.secrets, "token_bytes", random.Random(0).randbytes)


def deployed(nodes, out, run=RUN, noise=NOISE, **options):
    transport = FakeTransport(nodes)
    settings = SETTINGS | {"dp-prototypes.noise": noise}
    given = {"federation": THREE, "run": run, "set": settings, "out": out}
    return run_on(transport, "fedproto", **given, **BASE | options), transport


@pytest.fixture
def nodes(tmp_path):
    return {remote.key: node(tmp_path, remote.key, DATA, THREE) for remote in THREE}


def stripped(result, key_of):
    """Subtract from each upload's counts the noise of a key; return the errors to the true ones.

    The attacker knows all options, so it draws the noise as the client does, for no samples.
    """
    run, errors = pf.load_run(result.folder), []
    classes = torch.zeros(0, dtype=torch.long)
    for client, upload in run.uploads(0).items():
        normal = SecretStream(key_of(client)).normal
        _, noise = noisy_sums_and_counts(
            torch.zeros(0, 6), classes, 4, NOISE, SETTINGS["dp-prototypes.clip"], 0.2, normal
        )
        rows = upload["classes"]
        found = upload["counts"] - noise[rows]
        kept = upload["counts"] > 1  # smaller ones are cut
        errors += (found - torch.as_tensor(run.split().train_counts[client])[rows])[kept].tolist()
    return torch.tensor(errors).abs()


def epsilons(result):
    return {name for name in result.record[0].extra if "epsilon" in name}


def of_the_seed(client):
    return derived_key(b"", 0, "dp-prototypes", "secret", "release", 0, client)


def test_the_noise_of_a_simulation_can_be_subtracted_and_its_record_says_so(tmp_path):
    result = pf.run("fedproto", backend="local", set=SETTINGS, out=tmp_path / "run", **BASE)
    errors = stripped(result, of_the_seed)
    assert len(errors) > 5 and errors.max() <= 0.5, "the attack works where there is no secret"
    assert epsilons(result) == {"dp-prototypes.epsilon_if_deployed"}


def test_the_noise_of_a_deployed_run_cannot(tmp_path, nodes):
    result, transport = deployed(nodes, tmp_path / "run")
    errors = stripped(result, of_the_seed)
    assert errors.median() > 1.0, "the public seed draws other noise"
    assert epsilons(result) == {"dp-prototypes.epsilon"}
    everything = b"".join(transport.left)
    for key in nodes:
        secret = (tmp_path / key / noise_secret.FILE).read_bytes()
        for form in (secret, secret.hex().encode(), base64.b64encode(secret)):
            assert form not in everything, "the secret never leaves its node"


def counts_of(result):
    """Return the noisy counts [3, 4] of round 0; NaN where they are cut off or not sent."""
    found = torch.full((3, 4), torch.nan)
    for client, upload in pf.load_run(result.folder).uploads(0).items():
        kept = upload["counts"] > 1
        found[client, upload["classes"][kept]] = upload["counts"][kept].float()
    return found


def test_no_two_uploads_have_equal_noise(tmp_path, nodes):
    """S + σ₁N and S + σ₂N would give S."""
    first = counts_of(deployed(nodes, tmp_path / "first")[0])
    again = counts_of(deployed(nodes, tmp_path / "again")[0])
    assert same(first, again), "the same job has the same noise: repetitions do not average it away"
    named = deployed(nodes, tmp_path / "named", run="f" * 16)[0]
    assert not same(first, counts_of(named)), "another name of the run"
    true = torch.as_tensor(pf.load_run(named.folder).split().train_counts)
    stronger = deployed(nodes, tmp_path / "more", noise=1.5 * NOISE)[0]
    solved = (1.5 * first - counts_of(stronger)) / 0.5
    assert (solved - true).abs().nanmedian() > 2, "another plan under the same name"


def same(first, second):
    return torch.equal(first.nan_to_num(-1), second.nan_to_num(-1))


def test_another_download_or_state_has_other_noise(tmp_path, nodes):
    """A server may send two downloads in one round, or claim that an upload was lost."""
    _, transport = deployed(nodes, tmp_path / "run", rounds=3)
    sent = [(text, blobs) for key, text, blobs in transport.sent if key == "a"]
    trains = [(json.loads(text), blobs) for text, blobs in sent if '"Train"' in text]
    (first, blobs), (last, others) = trains[1:]

    def upload(base, download):
        """Ask for the upload of the last round, with another state or download of the client."""
        asked = json.loads(json.dumps(last))
        asked["jobs"][0]["base"] = base["jobs"][0].get("base")
        _, found = nodes["a"].respond(json.dumps(asked), download)
        return pf.Payload.from_bytes(found[0])["counts"].tolist()

    assert upload(last, others) == upload(last, others)
    assert upload(last, blobs) != upload(last, others), "counts are equal, so noise is not"
    assert upload(first, others) != upload(last, others)


def test_a_node_makes_its_secret_once(tmp_path):
    first = node_secret(tmp_path)
    assert len(first) == 32 and node_secret(tmp_path) == first
    file = tmp_path / noise_secret.FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert [*tmp_path.iterdir()] == [file]
    other = tmp_path / "other"
    other.mkdir()
    assert node_secret(other) != first


@pytest.mark.parametrize(("change", "words"), [
    (lambda file: file.write_bytes(b"short"), "has 5 bytes, expected 32"),
    (lambda file: file.chmod(0o644), "has the mode 644"),
])  # fmt: skip
def test_a_node_does_not_start_with_a_damaged_or_open_secret(tmp_path, change, words):
    node(tmp_path, "a", DATA, THREE)
    change(tmp_path / "a" / noise_secret.FILE)
    with pytest.raises(pf.UsageError, match=words):
        node(tmp_path, "a", DATA, THREE)
