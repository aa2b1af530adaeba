"""Tests of defences as donors of server_aggregate: effect on uploads, methods, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import protofl as pf
from protofl import functional as F
from protofl.errors import Refused
from protofl.testing import toy as toyfed
from protofl_plugins.defences.coordinate_median import coordinate_median
from protofl_plugins.defences.cosine_filter import cosine_filter
from protofl_plugins.defences.geometric_median import geometric_median
from protofl_plugins.defences.multi_krum import multi_krum
from protofl_plugins.defences.trimmed_mean import trimmed_mean

DEFENCES = {
    "coordinate-median": coordinate_median,
    "trimmed-mean": lambda P, present: trimmed_mean(P, present, 0.2),
    "geometric-median": geometric_median,
    "multi-krum": lambda P, present: kept_mean(P, multi_krum(P, present, 0.2)),
    "cosine-filter": lambda P, present: kept_mean(P, cosine_filter(P, present, 0.0)),
}
TAKERS = ("fedtgp", "fedgh", "fedsa", "fedktl", "fedpkd")
each = pytest.mark.parametrize("defence", DEFENCES)


def kept_mean(P, kept):
    """Return the mean of the kept rows of every class, one class at a time."""
    rows = [P[kept[:, c], c].mean(0) for c in range(P.shape[1])]
    return torch.stack([row.nan_to_num() for row in rows])


@pytest.fixture
def federation(tmp_path):
    """Return ``federation(defence, method)``: six clients that share classes; class 3 is rare."""
    shares = [[4, 4, 4, 0], [4, 4, 4, 0], [4, 4, 0, 4], [4, 4, 4, 0], [4, 0, 4, 0], [4, 4, 4, 4]]

    def make(defence, method="fedproto", **run):
        options = run.pop("set", {})
        plan = toyfed.make_plan(
            method,
            tmp_path,
            data=toyfed.make_images(shares),
            clients=6,
            use={"server_aggregate": defence} if defence else {},
            options={defence: options} if options else {},
            **run,
        )
        return toyfed.Toy(plan)

    return make


def uploads_of(found, round):
    """Return {client: upload} of a round."""
    blobs = found.pool.uploads(round)
    return {client: pf.Payload.from_bytes(blobs[client]) for client in sorted(blobs)}


def sifted(found, uploads):
    """Return the uploads as changed by the defence."""
    server = found.views()[1]
    return found.plan.composition.pass_on("receive_uploads", "uploads", uploads, server=server)


@each
def test_the_global_state_is_the_rules_mean(federation, defence):
    found = federation(defence)
    found.rounds(1)
    P, present = pf.stack_rows(uploads_of(found, 0), "prototypes", 4)
    table, known = found.server.global_state.table("prototypes", 4)
    assert torch.equal(known, present.any(0))
    torch.testing.assert_close(table, DEFENCES[defence](P, present))


@each
def test_what_server_train_sees(federation, defence):
    """A robust mean replaces every row; a filter removes rows and leaves the others as sent."""
    found = federation(defence, method="fedtgp", malicious=0.3, transforms=["sign-flip"])
    found.rounds(1)
    sent = uploads_of(found, 0)
    P, present = pf.stack_rows(sent, "prototypes", 4)
    wanted, left = DEFENCES[defence](P, present), sifted(found, sent)
    assert [*left] == [*sent]
    Q, kept = pf.stack_rows(left, "prototypes", 4)
    if defence in ("multi-krum", "cosine-filter"):
        assert torch.equal(Q, P.masked_fill(~kept.unsqueeze(2), 0)) and not bool(
            (kept & ~present).any()
        )
        assert int(kept.sum()) < int(present.sum())
        torch.testing.assert_close(kept_mean(Q, kept), wanted)
    else:
        assert torch.equal(kept, present)
        for client in range(6):
            torch.testing.assert_close(Q[client][kept[client]], wanted[kept[client]])
    for client, upload in sent.items():
        assert torch.equal(upload["prototypes"], P[client][present[client]]), "it was written to"


def test_a_filter_takes_counts_out_with_their_rows(federation):
    found = federation("multi-krum", malicious=0.2, transforms=["scaling"])
    found.rounds(1)
    sent = uploads_of(found, 0)
    left = sifted(found, sent)
    _, kept = pf.stack_rows(left, "prototypes", 4)
    counts, counted = pf.stack_rows(left, "counts", 4)
    whole, _ = pf.stack_rows(sent, "counts", 4)
    assert torch.equal(kept, counted) and int(kept.sum()) < int((whole > 0).sum())
    assert torch.equal(counts, whole * kept)


@pytest.mark.parametrize(
    ("defence", "method"),
    [*((defence, "fedproto") for defence in DEFENCES), *(("multi-krum", m) for m in TAKERS)],
)
def test_methods_that_take_them(federation, defence, method, tmp_path):
    """Every method whose clients send prototypes runs with a defence, under attack."""
    run = {"malicious": 0.2, "transforms": ["scaling"]}
    if method == "fedpkd":
        run["public"] = f"npz:{tmp_path / 'public.npz'}"
        x = np.random.default_rng(0).standard_normal((12, toyfed.SIDE, toyfed.SIDE))
        np.savez(tmp_path / "public.npz", x_train=x.astype(np.float32), y_train=np.arange(12) % 4)
    (line,) = federation(defence, method=method, **run).rounds(1)
    assert line["honest_accuracy"] is not None


def test_methods_that_send_no_prototypes_are_refused(tmp_path, few):
    with pytest.raises(Refused, match="'prototypes'") as error:
        pf.run(
            "fml",
            models="cnn4",
            dataset=few,
            clients=4,
            use={"server_aggregate": "multi-krum"},
            out=tmp_path / "run",
        )
    assert "server_aggregate of multi-krum" in str(error.value)
    assert error.value.lacks == "key"


def test_they_are_not_run_alone(tmp_path, few):
    words = "multi-krum provides server_aggregate for other methods, and no download_payload"
    with pytest.raises(pf.UsageError, match=words) as error:
        pf.run("multi-krum", models="cnn4", dataset=few, out=tmp_path / "run")
    assert "--use server_aggregate=multi-krum" in str(error.value)


def test_other_hooks_are_not_to_be_had(tmp_path, few):
    words = "multi-krum provides server_aggregate for other methods, and no inference"
    with pytest.raises(pf.UsageError, match=words):
        pf.run("fedproto", models="cnn4", dataset=few, use={"inference": "multi-krum"})


@pytest.mark.parametrize(("absent", "stays"), [("keep", True), ("forget", False)])
def test_a_class_that_is_absent_from_a_round(federation, absent, stays):
    """Two clients have class 3; in a round without them it keeps or loses its prototype."""
    found = federation("coordinate-median", participation=0.34, rounds=12, set={"absent": absent})
    seen, missed = False, 0
    for number in range(12):
        found.rounds(1)
        here = any(3 in upload["classes"].tolist() for upload in uploads_of(found, number).values())
        _, known = found.server.global_state.table("prototypes", 4)
        seen |= here
        missed += seen and not here
        assert bool(known[3]) == (here or (stays and seen))
    assert missed


@each
def test_nothing_far_gets_through(federation, defence):
    """With one malicious client of six, the download stays near the honest mean."""
    attack = "sign-flip" if defence == "cosine-filter" else "scaling"
    run = {"malicious": 0.2, "transforms": [attack]}
    run |= {"models": toyfed.group(toyfed.NORM), "same_init": True}  # honest clients are alike
    plain, guarded = federation("", **run), federation(defence, **run)
    off = {}
    for name, found in (("plain", plain), ("guarded", guarded)):
        found.rounds(1)
        sent = uploads_of(found, 0)
        (bad,) = found.server.malicious
        honest = {c: u for c, u in sent.items() if c != bad}
        P, present = pf.stack_rows(honest, "prototypes", 4)
        mean, _ = F.aggregate_prototypes(P, present, "uniform")
        table, known = found.server.global_state.table("prototypes", 4)
        common = (present.sum(0) >= 3) & known  # honest clients outvote the attacker
        off[name] = float((table - mean)[common].norm())
    assert off["guarded"] < off["plain"] / 2
